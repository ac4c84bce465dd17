"""Sends streams as their parts arrive, and cancels them when the client is too slow."""

from __future__ import annotations

import asyncio
import collections
import http
from collections.abc import AsyncGenerator, Sequence

from pytriton.gateway.body_budget import SMALL
from pytriton.gateway.errors import RequestError, stopping
from pytriton.gateway.models import Reply
from pytriton.gateway.offload import size_of
from pytriton.gateway.request import Request
from pytriton.gateway.responses import Send, send_part, start_stream

EVENTS = "text/event-stream"
"""The media type of server-sent events."""


async def send_stream(request: Request, send: Send, media_type: str, parts: AsyncGenerator[bytes, None]) -> None:
    """Sends the parts of a response.

    A model cannot be told to wait. So its responses are read as they arrive, and the request is cancelled if too many
    of them wait for the client.

    Args:
        request: The request, whose body has been read.
        send: The ASGI callable that sends messages.
        media_type: The response's type.
        parts: Its parts. An error before the first one becomes a response with a status of its own. If the client is
            too slow, a `RequestError` is thrown into the generator, whose further parts end the stream. When the
            gateway is about to stop, the generator is cancelled, and ends the stream in the same way.

    Raises:
        RequestError: The stream failed before it began.
    """
    ending = asyncio.ensure_future(request.stopping.wait())
    try:
        first = await _first(parts, ending)
        await start_stream(send, media_type)
        await _send_rest(first, parts, ending, request, send)
    finally:
        ending.cancel()
        await parts.aclose()


async def _first(parts: AsyncGenerator[bytes, None], ending: asyncio.Future[None]) -> bytes:
    """Waits for the first part, unless the gateway is about to stop.

    Raises:
        RequestError: It is.
    """
    first = asyncio.ensure_future(anext(parts, b""))
    try:
        await asyncio.wait((first, ending), return_when=asyncio.FIRST_COMPLETED)
        if first.done():
            return first.result()
        raise stopping()
    finally:
        if not first.done():
            first.cancel()
            await asyncio.wait((first,))


async def _send_rest(
    first: bytes, parts: AsyncGenerator[bytes, None], ending: asyncio.Future[None], request: Request, send: Send
) -> None:
    backlog = _Backlog(request)
    reading = asyncio.ensure_future(_read_all(first, parts, backlog))
    sending = asyncio.ensure_future(_send_all(backlog, reading, send))
    try:
        done, _ = await asyncio.wait((sending, ending), return_when=asyncio.FIRST_COMPLETED)
        if done == {ending}:
            reading.cancel()
            await asyncio.wait((sending,))
    finally:
        for task in (reading, sending):
            task.cancel()
        await asyncio.gather(reading, sending, return_exceptions=True)
    sending.result()


def stream_error(request: Request, error: RequestError | asyncio.CancelledError, *, has_begun: bool) -> RequestError:
    """Returns the error that ends a stream, and notes it in the request.

    Args:
        request: The request.
        error: What the stream's generator has caught.
        has_begun: Whether the stream has begun.

    Raises:
        RequestError: The stream has not begun.
        asyncio.CancelledError: The client has disconnected.
    """
    if not has_begun or (isinstance(error, asyncio.CancelledError) and not request.stopping.is_set):
        raise error
    request.stream_error = stopping() if isinstance(error, asyncio.CancelledError) else error
    return request.stream_error


def check_backlog(replies: Sequence[Reply], limit: float) -> None:
    """Checks how much of a stream has arrived while the responses before it were encoded.

    Raises:
        RequestError: It is more than the limit.
    """
    if len(replies) > 1 and sum(map(size_of, replies)) > limit:
        raise _too_fast()


class _Backlog:
    """The parts of a stream that wait for its client.

    Args:
        request: The request, whose limits apply.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._parts: collections.deque[bytes] = collections.deque()
        self._size = 0
        self._ended = False
        self._changed = asyncio.Event()

    def add(self, part: bytes) -> bool:
        """Adds a part, and returns whether another one is waiting."""
        self._parts.append(part)
        self._size += len(part)
        self._request.hold(len(part))
        self._changed.set()
        return len(self._parts) > 1

    def end(self) -> None:
        """Marks the end of the stream: no part follows."""
        self._ended = True
        self._changed.set()

    async def take(self) -> bytes | None:
        """Waits for the next part; None at the end."""
        while not self._parts:
            if self._ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        part = self._parts.popleft()
        self._size -= len(part)
        self._request.hold(-len(part))
        return part

    def is_full(self) -> bool:
        """Returns whether more waits than the limits allow. A single part may always wait."""
        if len(self._parts) <= 1:
            return False
        return self._size > self._request.budget.max_stream_backlog or (
            self._size > SMALL and self._request.budget.is_exhausted
        )


async def _read_all(part: bytes, parts: AsyncGenerator[bytes, None], backlog: _Backlog) -> None:
    is_cut = False
    try:
        while part:
            if backlog.add(part):
                await asyncio.sleep(0)  # lets it be sent, even if the model never pauses
            if not is_cut and backlog.is_full():
                is_cut = True
                part = await parts.athrow(_too_fast())
            else:
                part = await anext(parts, b"")
    finally:
        backlog.end()


async def _send_all(backlog: _Backlog, reading: asyncio.Future[None], send: Send) -> None:
    while (part := await backlog.take()) is not None:
        await send_part(send, part)
    await reading  # its exception ends the response
    await send_part(send, b"", more=False)


def _too_fast() -> RequestError:
    return RequestError(
        http.HTTPStatus.INSUFFICIENT_STORAGE,
        "The client receives the stream more slowly than the model sends it, and more waits than the limit allows "
        "(GatewayConfig.max_stream_backlog): the request was cancelled.",
    )
