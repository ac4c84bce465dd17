"""Transports over gRPC, through tritonclient: blocking, and in asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from pytriton.client.core import failures, fork_safety
from pytriton.client.core.loop_thread import is_being_cancelled
from pytriton.client.core.port_probe import other_protocol
from pytriton.client.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.client.tls import TLSConfig
from pytriton.client.url import TritonUrl
from pytriton.server.version import ServerVersion
from pytriton.server.workarounds import Workaround

_MAX_MESSAGE_BYTES = 2**31 - 1
_CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    # A new channel connects at once, and does not share the pauses between attempts of the one that it replaces.
    ("grpc.use_local_subchannel_pool", 1),
]
# Workaround for Triton (grpc-cancellation): a request that is cancelled, or whose deadline passes, before the server
# has read it may crash the server. So nothing is cancelled, and a deadline comes late: after this time, the server has
# read a request.
_SAFE_TIMEOUT_S = 10.0
_ABANDONED_S = 600.0  # how much longer the server may take for a request that nobody waits for
_FIRST_METHOD = "get_model_config"  # that a client calls; the server's version is looked up after it
_VERSION_TIMEOUT_S = 1.0
_CLOSING_TIMEOUT_S = 2.0
_CLOSING_POLL_S = 0.005
# Responses that are converted to dictionaries, as over HTTP, and the part of the response that is used.
_READ_AS_JSON: Mapping[str, Callable[[Any], Any]] = {
    "get_model_config": lambda response: response["config"],
    "get_model_repository_index": lambda response: response.get("models", []),
    "get_inference_statistics": lambda response: response,
}


def may_cancel(version: str) -> bool:
    """Returns whether requests to a server of a version may be cancelled."""
    try:
        return not Workaround.GRPC_CANCELLATION.is_needed(ServerVersion.parse(version))
    except ValueError:
        return False


def outputs_of(result: Any) -> list[tuple[str, str, Sequence[int]]]:
    """Lists the outputs of an ``InferResult``: name, datatype and shape."""
    return [(each.name, each.datatype, each.shape) for each in result.get_response().outputs]


def library() -> ModuleType:
    """Returns ``tritonclient.grpc``."""
    import tritonclient.grpc

    module: ModuleType = tritonclient.grpc
    return module


def channel_options(url: TritonUrl, tls: TLSConfig) -> dict[str, Any]:
    """Returns the arguments for tritonclient's clients, blocking and asyncio.

    Args:
        url: The server's URL.
        tls: TLS settings.

    Raises:
        PyTritonClientValueError: Verification is off, which gRPC does not support.
    """
    options: dict[str, Any] = {"url": url.without_scheme, "channel_args": _CHANNEL_OPTIONS}
    if url.secure:
        if not tls.verify:
            raise PyTritonClientValueError(
                f"TLSConfig(verify=False) is only for https://, and the URL is {url.with_scheme}; name the file with "
                "the server's certificate as root_certificates."
            )
        files = {
            "root_certificates": tls.root_certificates,
            "certificate_chain": tls.certificate_chain,
            "private_key": tls.private_key or tls.certificate_chain,
        }
        options |= {"ssl": True} | {key: os.fspath(file) for key, file in files.items() if file is not None}
    return options


class GrpcTransport:
    """A blocking connection to a server, which any number of threads may use.

    Args:
        url: The server's URL.
        tls: TLS settings.
        given: An existing tritonclient client to use, which is left open.
    """

    def __init__(self, url: TritonUrl, tls: TLSConfig, given: Any = None) -> None:
        """Stores the arguments; connects on first use."""
        self.url = url
        self._options = channel_options(url, tls)
        self._given = given
        self._client: Any = None
        self._closed = False
        self._lock = threading.Lock()
        self._may_cancel = False
        self._in_flight: dict[object, float] = {}
        """When the requests were sent that the server has not answered yet: `time.monotonic`."""

    outputs_of = staticmethod(outputs_of)
    library = property(lambda _: library())

    def other_protocol(self) -> PyTritonClientInferenceServerError | None:
        """See `Transport.other_protocol`."""
        return other_protocol(self.url)

    def load(self) -> None:
        """Imports tritonclient's client."""
        import tritonclient.grpc  # noqa: F401

    def call(self, method: str, timeout_s: float, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of tritonclient's client; see `Transport.call`."""
        client = self._given or self._client or self._connect()
        if method in _READ_AS_JSON:
            kwargs["as_json"] = True
        try:
            if method == "infer" and timeout_s < _SAFE_TIMEOUT_S and not self._may_cancel:
                response = self._infer_unless_late(client, timeout_s, *args, **kwargs)
            else:
                request = object()
                self._in_flight[request] = time.monotonic()
                try:
                    response = getattr(client, method)(*args, client_timeout=timeout_s, **kwargs)
                finally:
                    del self._in_flight[request]
            if method == _FIRST_METHOD:
                with contextlib.suppress(Exception):  # it is restricted: the server may be an old one
                    metadata = client.get_server_metadata(client_timeout=_VERSION_TIMEOUT_S)
                    self._may_cancel = may_cancel(metadata.version)
        except PyTritonClientTimeoutError:
            raise
        except Exception as error:
            if self._closed:
                raise failures.closed_meanwhile() from None
            if _is_unknown_model(method, error):
                return False
            translated = translate(self.url.with_scheme, error, timeout_s)
            if not failures.is_response(translated):
                self._disconnect(client)
            raise translated from error
        return _READ_AS_JSON[method](response) if method in _READ_AS_JSON else response

    def _infer_unless_late(self, client: Any, timeout_s: float, *args: Any, **kwargs: Any) -> Any:
        """Sends a request, and abandons it after a while: the server finishes it, and its response is dropped."""
        responded = threading.Lock()
        responded.acquire()
        outcome: list[Any] = []
        request = object()

        def take(result: Any, error: Any) -> None:
            self._in_flight.pop(request, None)
            outcome.extend((result, error))
            with contextlib.suppress(RuntimeError):  # nobody waits any more
                responded.release()

        self._in_flight[request] = time.monotonic()
        try:
            client.async_infer(*_with_callback(args, take), client_timeout=timeout_s + _ABANDONED_S, **kwargs)
        except BaseException:
            del self._in_flight[request]
            raise
        if not responded.acquire(timeout=timeout_s):
            raise failures.timed_out(self.url.with_scheme, timeout_s)
        result, error = outcome
        if error is not None:
            raise error
        return result

    def connect(self) -> Any:
        """Creates another tritonclient client, which the caller closes."""
        import tritonclient.grpc

        return tritonclient.grpc.InferenceServerClient(**self._options)

    def close(self) -> None:
        """Closes the connection; calls that wait for a response end with an error."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            # Closing the channel cancels requests, some of which the server may not have read yet.
            while not self._may_cancel and self._has_just_sent():
                time.sleep(_CLOSING_POLL_S)
            client.close()

    def _has_just_sent(self) -> bool:
        return any(time.monotonic() - sent < _CLOSING_TIMEOUT_S for sent in list(self._in_flight.values()))

    def _connect(self) -> Any:
        with self._lock:
            if self._closed:
                raise failures.closed_meanwhile()
            if self._client is None:
                self._client = self.connect()
            return self._client

    def _disconnect(self, client: Any) -> None:
        """Makes the next call reconnect; calls of other threads continue, and the last one closes the client."""
        with self._lock:
            if self._client is client:
                self._client = None


class AsyncioGrpcTransport:
    """A connection to a server for the tasks of an event loop.

    Args:
        url: The server's URL.
        tls: TLS settings.
    """

    def __init__(self, url: TritonUrl, tls: TLSConfig) -> None:
        """Stores the arguments; connects on first use."""
        self.url = url
        self._options = channel_options(url, tls)
        self._client: Any = None
        self._closed = False
        self.may_cancel = False
        """Whether the server is known to stand cancellations."""
        self._abandoned: set[asyncio.Future[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Future[None] | None = None  # of that loop

    outputs_of = staticmethod(outputs_of)
    library = property(lambda _: library())

    async def other_protocol(self) -> PyTritonClientInferenceServerError | None:
        """See `Transport.other_protocol`."""
        return await asyncio.to_thread(other_protocol, self.url)

    def load(self) -> None:
        """Imports tritonclient's client."""
        import tritonclient.grpc.aio  # noqa: F401

    async def call(self, method: str, timeout_s: float, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of tritonclient's client; see `Transport.call`."""
        client = self.client()
        if method in _READ_AS_JSON:
            kwargs["as_json"] = True
        try:
            if method == "infer" and not self.may_cancel:
                response = await self._infer_unless_late(client, timeout_s, *args, **kwargs)
            else:
                response = await getattr(client, method)(*args, client_timeout=timeout_s, **kwargs)
            if method == _FIRST_METHOD:
                with contextlib.suppress(Exception):  # it is restricted: the server may be an old one
                    metadata = await client.get_server_metadata(client_timeout=_VERSION_TIMEOUT_S)
                    self.may_cancel = may_cancel(metadata.version)
        except (PyTritonClientTimeoutError, PyTritonClientClosedError):
            raise
        except asyncio.CancelledError:
            raise self.cancelled() from None
        except Exception as error:
            if _is_unknown_model(method, error):
                return False
            raise self.failed(client, error, timeout_s) from error
        return _READ_AS_JSON[method](response) if method in _READ_AS_JSON else response

    async def _infer_unless_late(self, client: Any, timeout_s: float, *args: Any, **kwargs: Any) -> Any:
        """Sends a request, and abandons it if it takes too long, is cancelled, or the transport is closed."""
        assert self._closing is not None
        call = asyncio.ensure_future(client.infer(*args, client_timeout=timeout_s + _ABANDONED_S, **kwargs))
        try:
            await asyncio.wait([call, self._closing], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.abandon(call)
            raise
        if call.done():
            return call.result()
        self.abandon(call)
        raise failures.closed_meanwhile() if self._closed else failures.timed_out(self.url.with_scheme, timeout_s)

    def abandon(self, call: asyncio.Future[Any]) -> None:
        """Keeps what nobody waits for until it is done, or the transport is closed."""
        self._abandoned.add(call)
        call.add_done_callback(self._forget)

    def _forget(self, call: asyncio.Future[Any]) -> None:
        self._abandoned.discard(call)
        if not call.cancelled():
            call.exception()  # so that it counts as retrieved

    def client(self) -> Any:
        """Returns the current tritonclient client.

        Raises:
            PyTritonClientClosedError: The transport is closed.
            PyTritonClientError: This process was forked from one that had such a client; gRPC would mix up their
                responses.
        """
        if self._closed:
            raise failures.closed_meanwhile()
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            import tritonclient.grpc.aio

            _check_same_process()
            if self._loop is not loop:
                self._loop, self._closing = loop, loop.create_future()
            self._client = tritonclient.grpc.aio.InferenceServerClient(**self._options)
        return self._client

    def failed(self, client: Any, error: Exception, timeout_s: float) -> Exception:
        """Translates the error of a call, and makes the next one reconnect if the connection broke."""
        if self._closed:
            return failures.closed_meanwhile()
        translated = translate(self.url.with_scheme, error, timeout_s)
        if not failures.is_response(translated) and self._client is client:
            self._client = None
        return translated

    def cancelled(self) -> BaseException:
        """Returns the error for a cancelled call: gRPC cancels all calls when the channel is closed."""
        return failures.closed_meanwhile() if self._closed and not is_being_cancelled() else asyncio.CancelledError()

    async def close(self) -> None:
        """Closes the connection; calls that wait for a response end with an error."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            if self._closing is not None and not self._closing.done():
                self._closing.set_result(None)
                await asyncio.sleep(0)  # those who wait abandon their requests
            if self._abandoned:  # closing the connection would cancel them
                await asyncio.wait(self._abandoned, timeout=_CLOSING_TIMEOUT_S)
            await client.close()


def _with_callback(args: Sequence[Any], callback: Callable[[Any, Any], None]) -> Sequence[Any]:
    """Converts positional arguments of tritonclient's ``infer`` to those of ``async_infer``."""
    model, inputs, *others = args
    return (model, inputs, callback, *others)


def _is_unknown_model(method: str, error: Exception) -> bool:
    """Returns whether an error says that a model is not ready because there is none, as current servers do."""
    status = getattr(error, "status", None)
    return method == "is_model_ready" and status is not None and status() == "StatusCode.NOT_FOUND"


def translate(url: str, error: Exception, timeout_s: float) -> Exception:
    """Translates an error of tritonclient or gRPC to one of the clients'.

    Args:
        url: The server's.
        error: What was raised.
        timeout_s: The timeout of the call.
    """
    import grpc
    from tritonclient.utils import InferenceServerException

    if isinstance(error, grpc.RpcError):
        return failures.grpc_failure(url, str(error.code()), str(error.details()), timeout_s)
    if isinstance(error, InferenceServerException):
        return failures.grpc_failure(url, error.status(), str(error.message()), timeout_s)
    if failures.is_closed(str(error)):
        return failures.closed_meanwhile()
    if isinstance(error, ValueError | TypeError | KeyError | AttributeError):
        return failures.malformed(url, error)
    return error


_first_process: object = None
"""The first process that used gRPC in asyncio."""


def _check_same_process() -> None:
    global _first_process
    _first_process = _first_process or fork_safety.process
    if _first_process is not fork_safety.process:
        raise PyTritonClientError(
            "gRPC was used for asyncio, futures or streams in the process that this one was forked from, and does not "
            "work for them here; use HTTP, or start processes with the method 'spawn' of multiprocessing."
        )
