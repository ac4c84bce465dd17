"""The asyncio transport over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytriton.client.core import failures, fork_safety
from pytriton.client.core.connecting import ConnectOptions
from pytriton.client.core.grpc.transport import (
    ABANDONED_S,
    CLOSING_TIMEOUT_S,
    FIRST_METHOD,
    NO_HEADERS,
    VERSION_TIMEOUT_S,
    check_tls,
    is_unknown_model,
    may_cancel,
    translated,
)
from pytriton.client.core.loop_thread import is_being_cancelled
from pytriton.client.core.port_probe import other_protocol
from pytriton.client.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
)
from pytriton.client.url import TritonUrl

if TYPE_CHECKING:
    from pytriton.client.core.grpc.channel import Channel


class AsyncioGrpcTransport:
    """A connection to a server for the tasks of an event loop.

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
        self.may_cancel = False
        """Whether the server is known to survive cancellations."""
        self._abandoned: dict[asyncio.Future[Any], float] = {}
        """Calls that nothing waits for, and until when closing waits for each: `time.monotonic`."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Future[None]] = set()  # of that loop
        """Each of them ends the wait for a response."""

    async def other_protocol(self) -> PyTritonClientInferenceServerError | None:
        """See `Transport.other_protocol`."""
        return await asyncio.to_thread(other_protocol, self.url)

    def load(self) -> None:
        """Imports gRPC and the API's messages."""
        import pytriton.client.core.grpc.api
        import pytriton.client.core.grpc.channel  # noqa: F401

    async def call(
        self, method: str, timeout_s: float, *args: Any, headers: Mapping[str, str] = NO_HEADERS, **kwargs: Any
    ) -> Any:
        """Calls a method of the API; see `Transport.call`."""
        from pytriton.client.core.grpc import api

        call = api.call_of(method, *args, **kwargs)
        channel = self.channel()
        try:
            grace_s = ABANDONED_S if method == "infer" and not self.may_cancel else 0
            response = channel.unary(call.path)(
                call.message, timeout=timeout_s + grace_s, metadata=tuple(headers.items())
            )
            message = await (self._unless_late(response, timeout_s) if grace_s else response)
            result = call.read(message)
            if method == FIRST_METHOD:
                await self._look_at_version(channel, headers)
        except (PyTritonClientTimeoutError, PyTritonClientClosedError):
            raise
        except asyncio.CancelledError:
            raise self.cancelled() from None
        except Exception as error:
            if is_unknown_model(method, error):
                return False
            raise self.failed(channel, error, timeout_s) from error.__cause__
        return result

    async def _unless_late(self, response: Any, timeout_s: float) -> bytes:
        """Waits for a response, and abandons it if it takes too long, is cancelled, or the transport is closed."""
        loop = asyncio.get_running_loop()
        sent = time.monotonic()
        end: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(timeout_s, _wake, end)
        response.add_done_callback(lambda _: _wake(end))
        self._waiting.add(end)
        try:
            await end
            if response.done():
                message: bytes = await response
                return message
        except asyncio.CancelledError:
            self.abandon(asyncio.ensure_future(response), sent)
            raise
        finally:
            timer.cancel()
            self._waiting.discard(end)
        self.abandon(asyncio.ensure_future(response), sent)
        raise failures.closed_meanwhile() if self._closed else failures.timed_out(self.url.with_scheme, timeout_s)

    async def _look_at_version(self, channel: Channel, headers: Mapping[str, str]) -> None:
        from pytriton.client.core.grpc import api

        with contextlib.suppress(Exception):  # the endpoint is restricted: assume an old server
            call = api.call_of("get_server_metadata")
            send = channel.unary(call.path)
            message = await send(call.message, timeout=VERSION_TIMEOUT_S, metadata=tuple(headers.items()))
            self.may_cancel = may_cancel(call.read(message).version)

    def abandon(self, call: asyncio.Future[Any], sent: float | None = None) -> None:
        """Keeps an abandoned call until it is done or the transport is closed.

        Args:
            call: The call.
            sent: When its request was sent, a `time.monotonic`; now by default.
        """
        self._abandoned[call] = (time.monotonic() if sent is None else sent) + CLOSING_TIMEOUT_S
        call.add_done_callback(self._forget)

    def _forget(self, call: asyncio.Future[Any]) -> None:
        self._abandoned.pop(call, None)
        if not call.cancelled():
            call.exception()  # marks it as retrieved

    def channel(self) -> Channel:
        """Returns the current channel.

        Raises:
            PyTritonClientClosedError: The transport is closed.
            PyTritonClientError: This process was forked from one that had such a channel; gRPC would mix up their
                responses.
        """
        if self._closed:
            raise failures.closed_meanwhile()
        loop = asyncio.get_running_loop()
        if self._channel is None or self._loop is not loop:
            from pytriton.client.core.grpc.channel import asyncio_channel

            _check_same_process()
            if self._loop is not loop:
                self._loop, self._waiting = loop, set()
            self._channel = asyncio_channel(self.url, self._options)
        return self._channel

    def failed(self, channel: Channel, error: Exception, timeout_s: float) -> Exception:
        """Translates the error of a call, and makes the next one reconnect if the connection broke."""
        if self._closed:
            return failures.closed_meanwhile()
        translated_error = translated(self.url.with_scheme, error, timeout_s)
        if not failures.is_response(translated_error) and self._channel is channel:
            self._channel = None
        return translated_error

    def cancelled(self) -> BaseException:
        """Returns the error for a cancelled call: gRPC cancels all calls when the channel is closed."""
        return failures.closed_meanwhile() if self._closed and not is_being_cancelled() else asyncio.CancelledError()

    async def close(self) -> None:
        """Closes the connection; calls that wait for a response end with an error."""
        self._closed = True
        channel, self._channel = self._channel, None
        if channel is not None and self._loop is asyncio.get_running_loop():
            for end in self._waiting:
                _wake(end)
            await asyncio.sleep(0)  # waiting tasks abandon their requests
            now = time.monotonic()
            # Closing the connection cancels them, some of which the server may not have read yet.
            unread = {call: until for call, until in self._abandoned.items() if until > now}
            if unread:
                await asyncio.wait(unread, timeout=max(unread.values()) - now)
            await channel.close()


def _wake(end: asyncio.Future[None]) -> None:
    if not end.done():
        end.set_result(None)


_first_process: object = None
"""The process that first used gRPC in asyncio."""


def _check_same_process() -> None:
    global _first_process
    _first_process = _first_process or fork_safety.process
    if _first_process is not fork_safety.process:
        raise PyTritonClientError(
            "gRPC was used for asyncio, futures or streams in the process that this one was forked from, and does not "
            "work for them here; use HTTP, or start processes with the method 'spawn' of multiprocessing."
        )
