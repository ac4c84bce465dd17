"""The blocking transport over gRPC."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytriton.client.core import failures, fork_safety
from pytriton.client.core.connecting import ConnectOptions
from pytriton.client.core.port_probe import other_protocol
from pytriton.client.exceptions import (
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.client.tls import TLSConfig
from pytriton.client.url import TritonUrl
from pytriton.server.version import ServerVersion
from pytriton.server.workarounds import Workaround
from pytriton.utils.signals import comes_from_handler

if TYPE_CHECKING:
    from pytriton.client.core.grpc.api import Call
    from pytriton.client.core.grpc.channel import Channel

# Workaround for Triton (grpc-cancellation): a request that is cancelled, or whose deadline passes, before the server
# has read it may crash the server. So requests are not cancelled, and have a later deadline: after this time, the
# server has read a request.
_SAFE_TIMEOUT_S = 10.0
ABANDONED_S = 600.0
"""How much longer the server may take for an abandoned request."""
FIRST_METHOD = "get_model_config"
"""The first method that a client calls; the server's version is looked up after it."""
VERSION_TIMEOUT_S = 1.0
CLOSING_TIMEOUT_S = 2.0
NOT_FOUND = "StatusCode.NOT_FOUND"
_CLOSING_POLL_S = 0.005
NO_HEADERS: Mapping[str, str] = {}


class GrpcTransport:
    """A blocking connection to a server, which any number of threads may use.

    Args:
        url: The server's URL.
        options: How to connect.

    Raises:
        PyTritonClientValueError: gRPC does not support the TLS settings.
    """

    def __init__(self, url: TritonUrl, options: ConnectOptions) -> None:
        """Stores the arguments; connects on first use."""
        check_tls(url, options.tls)
        self.url = url
        self._options = options
        self._channel: Channel | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._may_cancel = False
        self._in_flight: dict[object, float] = {}
        """When the pending requests were sent: `time.monotonic`."""

    def other_protocol(self) -> PyTritonClientInferenceServerError | None:
        """See `Transport.other_protocol`."""
        return other_protocol(self.url)

    def load(self) -> None:
        """Imports gRPC and the API's messages."""
        import pytriton.client.core.grpc.api
        import pytriton.client.core.grpc.channel  # noqa: F401

    def call(
        self, method: str, timeout_s: float, *args: Any, headers: Mapping[str, str] = NO_HEADERS, **kwargs: Any
    ) -> Any:
        """Calls a method of the API; see `Transport.call`."""
        from pytriton.client.core.grpc import api

        call = api.call_of(method, *args, **kwargs)
        channel = self._channel or self._connect()
        try:
            if method == "infer" and timeout_s < _SAFE_TIMEOUT_S and not self._may_cancel:
                message = self._send_unless_late(channel, call, headers, timeout_s)
            else:
                message = self._send(channel, call, headers, timeout_s)
            response = call.read(message)
            if method == FIRST_METHOD:
                self._look_at_version(channel, headers)
        except PyTritonClientTimeoutError:
            raise
        except Exception as error:
            if comes_from_handler(error):
                raise
            if self._closed:
                raise failures.closed_meanwhile() from None
            if is_unknown_model(method, error):
                return False
            translated_error = translated(self.url.with_scheme, error, timeout_s)
            if not failures.is_response(translated_error):
                self._disconnect(channel)
            raise translated_error from error.__cause__
        return response

    def close(self) -> None:
        """Closes the connection; calls that wait for a response end with an error.

        If requests were just sent, the connection is closed a moment later, in the background.
        """
        with self._lock:
            self._closed = True
            channel, self._channel = self._channel, None
        if channel is None:
            return
        if self._may_cancel or not self._has_just_sent():
            channel.close()
            return
        fork_safety.keep_in_children(channel)
        # Not a daemon: the end of the program, too, would cancel the requests.
        closing = threading.Thread(target=self._close_later, args=(channel,), name="pytriton-closing", daemon=False)
        try:
            if not threading.main_thread().is_alive():
                raise RuntimeError  # the interpreter is exiting, and waits for no further threads
            closing.start()
        except RuntimeError:  # or there can be no further threads
            closing.run()

    def _close_later(self, channel: Channel) -> None:
        """Closes a channel when the server has read its requests, which closing cancels."""
        while self._has_just_sent():
            time.sleep(_CLOSING_POLL_S)
        channel.close()

    def _send(self, channel: Channel, call: Call, headers: Mapping[str, str], timeout_s: float) -> bytes:
        request = object()
        self._in_flight[request] = time.monotonic()
        try:
            message: bytes = channel.unary(call.path)(call.message, timeout=timeout_s, metadata=tuple(headers.items()))
        finally:
            del self._in_flight[request]
        return message

    def _send_unless_late(self, channel: Channel, call: Call, headers: Mapping[str, str], timeout_s: float) -> bytes:
        """Sends a request, and abandons it after a while: the server finishes it, and its response is dropped."""
        responded = threading.Lock()
        responded.acquire()
        request = object()

        def take(_response: Any) -> None:
            self._in_flight.pop(request, None)
            with contextlib.suppress(RuntimeError):  # the caller has stopped waiting
                responded.release()

        self._in_flight[request] = time.monotonic()
        try:
            response = channel.unary(call.path).future(
                call.message, timeout=timeout_s + ABANDONED_S, metadata=tuple(headers.items())
            )
            response.add_done_callback(take)
        except BaseException:
            self._in_flight.pop(request, None)
            raise
        if not responded.acquire(timeout=timeout_s):
            raise failures.timed_out(self.url.with_scheme, timeout_s)
        message: bytes = response.result()
        return message

    def _look_at_version(self, channel: Channel, headers: Mapping[str, str]) -> None:
        from pytriton.client.core.grpc import api

        with contextlib.suppress(Exception):  # the endpoint is restricted: assume an old server
            call = api.call_of("get_server_metadata")
            metadata = call.read(self._send(channel, call, headers, VERSION_TIMEOUT_S))
            self._may_cancel = may_cancel(metadata.version)

    def _has_just_sent(self) -> bool:
        return any(time.monotonic() - sent < CLOSING_TIMEOUT_S for sent in list(self._in_flight.values()))

    def _connect(self) -> Channel:
        from pytriton.client.core.grpc.channel import blocking_channel

        with self._lock:
            if self._closed:
                raise failures.closed_meanwhile()
            if self._channel is None:
                self._channel = blocking_channel(self.url, self._options)
            return self._channel

    def _disconnect(self, channel: Channel) -> None:
        """Makes the next call reconnect; calls of other threads continue, and the last one closes the channel."""
        with self._lock:
            if self._channel is channel:
                self._channel = None


def check_tls(url: TritonUrl, tls: TLSConfig) -> None:
    """Checks that gRPC supports TLS settings.

    Args:
        url: The server's URL.
        tls: The settings.

    Raises:
        PyTritonClientValueError: Verification is off, which gRPC does not support.
    """
    if url.secure and not tls.verify:
        raise PyTritonClientValueError(
            f"TLSConfig(verify=False) is only for https://, and the URL is {url.with_scheme}; name the file with "
            "the server's certificate as root_certificates."
        )


def may_cancel(version: str) -> bool:
    """Returns whether requests to a server of a version may be cancelled."""
    try:
        return not Workaround.GRPC_CANCELLATION.is_needed(ServerVersion.parse(version))
    except ValueError:
        return False


def is_unknown_model(method: str, error: Exception) -> bool:
    """Returns whether an error means that a model does not exist, as current servers report."""
    code = getattr(error, "code", None)  # only gRPC's errors have one
    return method == "is_model_ready" and code is not None and str(code()) == NOT_FOUND


def translated(url: str, error: Exception, timeout_s: float) -> Exception:
    """Translates the error of a call.

    Args:
        url: The server's URL.
        error: The exception.
        timeout_s: The timeout of the call.
    """
    import grpc
    from google.protobuf.message import DecodeError

    if isinstance(error, grpc.RpcError):
        return failures.grpc_failure(url, str(error.code()), str(error.details()), timeout_s)
    if failures.is_closed(str(error)):
        return failures.closed_meanwhile()
    if isinstance(error, (DecodeError, *failures.NOT_DECODED)):
        return failures.malformed(url, error)
    return error
