"""Streams of responses from decoupled models."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from pytriton.client.core import failures
from pytriton.client.core.connecting import ConnectOptions
from pytriton.client.core.grpc.asyncio_transport import AsyncioGrpcTransport
from pytriton.client.core.requests import EncodedRequest, tensors_of, wanted_of
from pytriton.client.core.sansio import Steps, run_async
from pytriton.client.core.servers import Server
from pytriton.client.core.session import Session
from pytriton.client.core.settings import Settings
from pytriton.client.exceptions import (
    Failure,
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientInputError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.client.url import TritonUrl
from pytriton.model_config.triton_model_config import TritonModelConfig
from pytriton.proxy.telemetry.propagation import RequestSpan

LOGGER = logging.getLogger(__name__)

_REASON_TIMEOUT_S = 1.0
# Workaround for Triton (grpc-cancellation): a stream that is cancelled while the server is sending a response may crash
# it. So a stream that is no longer read is cancelled when no response has arrived for a moment, or when it has not
# ended after this time.
_QUIET_S = 0.02
_LEAVING_TIMEOUT_S = 2.0


class Stream:
    """The responses of a server to one request.

    Args:
        server: The server, with the asyncio transport over gRPC.
        model: Name and version of the model.
        request: The request.
        timeout_s: How long to wait for each response.
    """

    def __init__(self, server: Server, model: tuple[str, str], request: EncodedRequest, timeout_s: float) -> None:
        """Sends the request."""
        from pytriton.client.core.grpc import api

        transport = server.transport
        assert isinstance(transport, AsyncioGrpcTransport)
        self._transport = transport
        self._timeout_s = timeout_s
        self._channel = transport.channel()
        name, version = model
        call = api.call_of("infer", name, tensors_of(request), version, wanted_of(request), **request.settings)
        self._call = self._channel.stream(api.STREAM)(
            _once(call.message), metadata=tuple(server.headers(request.headers).items())
        )
        self._responses: AsyncIterator[bytes] = aiter(self._call)
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.Future[Any] | None = None
        self._is_left = False
        self._span: RequestSpan | None = None
        self._url = server.url
        self.server = server
        self._let_go: Callable[[], None] | None = None

    def keep(self, let_go: Callable[[], None]) -> None:
        """Sets a function that is called once when the stream has ended, and releases the server."""
        self._let_go = let_go

    def trace(self, span: RequestSpan, first: Any) -> None:
        """Makes a span end with the stream; `first` is the first result of `receive`."""
        self._span = span
        self._note(first)

    async def receive(self, timeout_s: float | None = None) -> Any:
        """Waits for the next response.

        Args:
            timeout_s: The timeout, instead of the stream's.

        Returns:
            The ``InferResult``; None after the last one.

        Raises:
            PyTritonClientTimeoutError: It did not arrive in time.
            PyTritonClientInferenceServerError: The server or the model failed, or the connection broke.
            PyTritonClientClosedError: The client was closed meanwhile.
        """
        try:
            result = await self._result(timeout_s)
        except BaseException as error:
            if self._span is not None:
                self._span.end(error)
            raise
        self._note(result)
        if result is None:
            self._end()
        return result

    def _end(self) -> None:
        let_go, self._let_go = self._let_go, None
        if let_go is not None:
            let_go()

    def _note(self, result: Any) -> None:
        if self._span is None:
            return
        if result is None:
            self._span.end()
        else:
            self._span.responded()

    async def _result(self, timeout_s: float | None) -> Any:
        from pytriton.client.core.grpc.results import read_stream_response

        try:
            received = await self._receive(timeout_s or self._timeout_s)
            if received is None:
                raise failures.timed_out(self._url, self._timeout_s)
            result, message = read_stream_response(received.result())
        except StopAsyncIteration:
            return None
        except asyncio.CancelledError:
            raise self._transport.cancelled() from None
        except PyTritonClientTimeoutError:
            raise
        except Exception as error:
            raise self._transport.failed(self._channel, error, timeout_s or self._timeout_s) from error.__cause__
        if result is None:
            raise failures.stream_failure(self._url, message)
        return result

    async def _receive(self, timeout_s: float) -> asyncio.Future[Any] | None:
        """Waits for the next event; None if it is late. A cancellation does not affect the stream."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._responses.__anext__())
        await asyncio.wait([self._next], timeout=timeout_s)
        if not self._next.done():
            return None
        received, self._next = self._next, None
        return received

    def leave(self) -> None:
        """Ends the stream on the server, in the background; may be called from any thread, and repeatedly."""
        if self._span is not None:
            self._span.end()
        if _running_loop() is self._loop:
            self._start_to_leave()
            return
        try:
            self._loop.call_soon_threadsafe(self._start_to_leave)
        except RuntimeError:  # the loop is closed, and the connection with it
            self._end()

    def _start_to_leave(self) -> None:
        if not self._is_left:
            self._is_left = True
            self._transport.abandon(asyncio.ensure_future(self._leave()))

    async def _leave(self) -> None:
        deadline = time.monotonic() + (0 if self._transport.may_cancel else _LEAVING_TIMEOUT_S)
        try:
            while time.monotonic() < deadline and (received := await self._receive(_QUIET_S)) is not None:
                received.result()
        except Exception:  # it has ended, or the connection broke
            LOGGER.debug("A stream that is no longer read has ended.", exc_info=True)
        finally:
            self._call.cancel()
            if self._next is not None:
                self._transport.abandon(self._next)
            self._end()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def open_stream(session: Session, request: EncodedRequest, key: object = None) -> tuple[Stream, Any]:
    """Sends a request for a stream, and waits for the first response.

    Args:
        session: The session, whose servers are used in turn.
        request: The request.
        key: Selects a fixed server; see `ServerSet.candidates`.

    Returns:
        The stream, and its first response, or None if there is none.
    """
    timeout_s = request.timeout_s or session.settings.stream_timeout_s
    deadline = session.deadline_of(request, timeout_s)
    servers = session.server_set

    def ask(server: Server) -> Steps[tuple[Stream, Any]]:
        if request.span is not None:
            request.span.sent_to(server.transport.url.hostname, server.transport.url.port)
        stream = Stream(server, session.model, request, timeout_s)
        servers.keep(server)
        stream.keep(functools.partial(servers.release, server))
        try:
            first = yield functools.partial(stream.receive, deadline.left_s())
        except BaseException as error:
            stream.leave()
            if failures.is_cut_short(error):
                yield from _look_for_reason(
                    server, session.model, request, min(_REASON_TIMEOUT_S, deadline.remaining_s())
                )
            raise
        return stream, first

    request, span = session.traced(request)
    try:
        stream, first = await run_async(session.attempts.open(ask, deadline, key))
    except BaseException as error:
        if span is not None:
            span.end(error)
        raise
    if span is not None:
        stream.trace(span, first)
    return stream, first


def _look_for_reason(server: Server, model: tuple[str, str], request: EncodedRequest, timeout_s: float) -> Steps[None]:
    """Raises the server's error if it requires a token; gRPC loses it if it arrives while the request is being sent."""
    try:  # no decoupled model responds like this
        yield server.call("infer", timeout_s, model[0], [], model[1], headers=request.headers)
    except PyTritonClientInferenceServerError as error:
        if error.failure is Failure.RESTRICTED:
            raise
    except PyTritonClientError:
        pass


async def results(
    session: Session, request: EncodedRequest, key: object = None
) -> AsyncGenerator[tuple[Server, Any], None]:
    """Sends a request and yields the results, and their server; leaving early cancels the request."""
    stream, result = await open_stream(session, request, key)
    try:
        while result is not None:
            yield stream.server, result
            result = await stream.receive()
    finally:
        stream.leave()


async def _once(message: bytes) -> AsyncIterator[bytes]:
    yield message


def stream_transport(url: TritonUrl, options: ConnectOptions) -> AsyncioGrpcTransport:
    """Returns the transport for streams to the server at a URL.

    Raises:
        PyTritonClientValueError: The URL is not one of gRPC.
    """
    if url.protocol != "grpc":
        raise PyTritonClientValueError(
            f"Decoupled models stream only over gRPC, and the URL is {url.with_scheme}; use "
            f"grpc://{url.hostname}, with the server's port for gRPC (8001 by default)."
        )
    return AsyncioGrpcTransport(url, options)


def check_settings(settings: Settings) -> None:
    """Checks for settings that streams do not support.

    Raises:
        PyTritonClientValueError: Shared memory is requested.
    """
    if settings.shared_memory:
        raise PyTritonClientValueError("Streams do not go through shared memory; omit shared_memory.")


def check_streams(config: TritonModelConfig, right_client: str) -> None:
    """Checks that the model is decoupled.

    Args:
        config: The model.
        right_client: The client class for other models.

    Raises:
        PyTritonClientInputError: It is not decoupled.
    """
    if not config.decoupled:
        raise PyTritonClientInputError(
            f"Model {config.model_name!r} is not decoupled: it sends one response to each request; use {right_client}."
        )
