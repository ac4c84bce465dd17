"""Responses of the gateway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from typing import Any

from pytriton.gateway.json_tensors import encode

_ENCRYPTED_PART = 1 << 18  # bytes

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


async def send_json(send: Send, body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
    """Sends JSON."""
    await send_bytes(send, encode(body), "application/json", status, headers)


async def send_bytes(
    send: Send, body: bytes, media_type: str, status: int = 200, headers: Mapping[str, str] | None = None
) -> None:
    """Sends a body whose size is known."""
    fields = [(b"content-type", media_type.encode()), (b"content-length", str(len(body)).encode())]
    if headers:
        fields += [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


def written_parts(body: bytes, *, is_encrypted: bool) -> Iterator[bytes]:
    """Yields a body as it is to be written.

    uvloop encrypts all that is written at once, and does not count it as waiting for the client any more.
    """
    if not is_encrypted:
        yield body
        return
    for start in range(0, len(body), _ENCRYPTED_PART):
        yield body[start : start + _ENCRYPTED_PART]


async def start_stream(send: Send, media_type: str) -> None:
    """Starts a response whose parts are sent as they arrive."""
    fields = [
        (b"content-type", media_type.encode()),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),  # otherwise nginx would buffer events
    ]
    await send({"type": "http.response.start", "status": 200, "headers": fields})


async def send_part(send: Send, part: bytes, *, more: bool = True) -> None:
    """Sends a part of a stream; the last one without ``more``."""
    await send({"type": "http.response.body", "body": part, "more_body": more})
