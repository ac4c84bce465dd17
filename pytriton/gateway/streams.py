"""Sends streams as their parts come, and cancels them when the client leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from pytriton.gateway.request import Request
from pytriton.gateway.responses import Send, send_part, start_stream

EVENTS = "text/event-stream"
"""The media type of server-sent events."""


async def send_stream(request: Request, send: Send, media_type: str, parts: AsyncGenerator[bytes, None]) -> None:
    """Sends the parts of a response.

    Args:
        request: The request, whose body has been read.
        send: Of ASGI.
        media_type: The response's type.
        parts: Its parts. An error before the first one becomes a response with a status of its own.

    Raises:
        RequestError: The stream failed before it began.
    """
    first = await anext(parts, b"")
    await start_stream(send, media_type)
    sending = asyncio.ensure_future(_send_all(first, parts, send))
    leaving = asyncio.ensure_future(request.wait_for_disconnect())
    try:
        await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, leaving):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending
        await parts.aclose()


async def _send_all(first: bytes, parts: AsyncGenerator[bytes, None], send: Send) -> None:
    if first:
        await send_part(send, first)
    async for part in parts:
        await send_part(send, part)
    await send_part(send, b"", more=False)
