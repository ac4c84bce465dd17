"""A request to the gateway."""

from __future__ import annotations

import asyncio
import http
import urllib.parse
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from functools import cached_property
from typing import Any

from pytriton.gateway.body_budget import SMALL, BodyBudget
from pytriton.gateway.errors import RequestError
from pytriton.gateway.offload import run
from pytriton.gateway.stop_event import StopEvent

CANCELLED_BY_SERVER = "pytriton.cancelled_by_server"
"""Key in the scope: whether the server calls `cancel`. Otherwise, `Request` does."""

_TASK = "pytriton.task"  # key in the scope: the task that responds
_DISCONNECTED = "pytriton.disconnected"  # key in the scope: why the task was cancelled

_MAX_RATIO = 1000  # of decompressed to compressed size
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}

Scope = MutableMapping[str, Any]


def cancel(scope: Scope) -> None:
    """Cancels the response to a request whose client has disconnected."""
    task: asyncio.Task[None] | None = scope.get(_TASK)
    if task is not None:
        scope[_DISCONNECTED] = True
        task.cancel()


class Request:
    """A request whose body is read once, up to a limit.

    Args:
        scope: The ASGI scope.
        receive: The ASGI callable that receives messages.
        max_body_size: Maximum size of the body in bytes.
        budget: The limit on all bodies together.
        stopping: Set when the gateway is about to stop, and streams must end.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        max_body_size: int,
        budget: BodyBudget,
        stopping: StopEvent,
    ) -> None:
        self._receive = receive
        self.budget = budget
        """The limit on all bodies together."""
        self.stopping = stopping
        """Set when the gateway is about to stop, and streams must end."""
        self._max_body_size = max_body_size
        self._held = 0  # bytes of the budget
        self._watching: asyncio.Task[None] | None = None
        self._scope = scope
        scope[_TASK] = asyncio.current_task()
        self.id = ""
        """The request's id in logs and in the model."""
        self.model = ""
        """The name of its model, once the model is known to exist."""
        self.stream_error: RequestError | None = None
        """The error that ended a stream after its response had begun."""
        self.forwarded: dict[str, str] = {}
        """The headers that become parameters of the request to the model."""
        self.key_name = ""
        """The name of its API key."""
        method: str = scope["method"]
        self.method = "GET" if method == "HEAD" else method  # the server leaves the body out
        """``GET``, ``POST`` and so on."""
        prefix: str = scope.get("root_path", "").rstrip("/")
        self.prefix = prefix
        """The path at which the application is mounted."""
        path: str = scope["path"]
        self.path = path[len(prefix) :] if prefix and path.startswith(prefix) else path
        """The path below the one at which the application is mounted."""
        self.is_encrypted: bool = scope.get("scheme") == "https"
        """Whether it came through TLS."""
        self._headers: dict[bytes, bytes] = dict(scope["headers"])

    def fields(self) -> dict[str, Any]:
        """See `pytriton.json_logs.Context`."""
        return {"request_id": self.id, "model": self.model} if self.model else {"request_id": self.id}

    @property
    def client_has_disconnected(self) -> bool:
        """Whether the response was cancelled because the client has disconnected."""
        return _DISCONNECTED in self._scope

    @cached_property
    def headers(self) -> dict[str, str]:
        """All headers by their names in lower case."""
        return {name.decode("latin1"): value.decode("latin1") for name, value in self._headers.items()}

    def header(self, name: str, default: str = "") -> str:
        """Returns a header; its name is in lower case."""
        value = self._headers.get(name.encode())
        return default if value is None else value.decode("latin1")

    def text(self, name: str) -> str:
        """Returns a header that may have any characters: UTF-8, or Latin-1 as HTTP was first defined."""
        value = self._headers[name.encode()]
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.decode("latin1")

    @cached_property
    def query(self) -> dict[str, str]:
        """The query's parameters."""
        return dict(urllib.parse.parse_qsl(self._scope["query_string"].decode("latin1"), keep_blank_values=True))

    @property
    def media_type(self) -> str:
        """The body's type, without parameters."""
        value = self._headers.get(b"content-type", b"")
        return value.partition(b";")[0].strip().lower().decode("latin1")

    def accepts(self, media_type: str) -> bool:
        """Returns whether the client accepts a media type by name."""
        accepted = self._headers.get(b"accept")  # cheap if there is none, as in most requests
        return accepted is not None and media_type in accepted.decode("latin1").lower()

    async def body(self) -> bytes:
        """Reads the body.

        Raises:
            RequestError: It is too large, compressed or not, or the client has disconnected.
        """
        if b"content-encoding" not in self._headers:
            return await self._raw_body()
        encoding = self.header("content-encoding").strip().lower()
        if encoding != "identity" and encoding not in _WINDOW_BITS:
            raise RequestError(
                http.HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"The body's encoding is {encoding!r}: use gzip or deflate."
            )
        body = await self._raw_body()
        if encoding == "identity":
            return body
        data = await run(len(body) * _MAX_RATIO, self._decompressed, body, _WINDOW_BITS[encoding])
        self._hold_body(len(data))
        return data

    def _decompressed(self, body: bytes, window_bits: int) -> bytes:
        decompressor = zlib.decompressobj(window_bits)
        try:
            data = decompressor.decompress(body, self._max_body_size + 1)
        except zlib.error as error:
            raise RequestError(http.HTTPStatus.BAD_REQUEST, f"The body cannot be decompressed: {error}.") from error
        if len(data) > self._max_body_size:
            raise self._too_large()
        if not decompressor.eof or decompressor.unused_data:
            raise RequestError(http.HTTPStatus.BAD_REQUEST, "The body is not exactly one compressed stream.")
        return data

    async def _raw_body(self) -> bytes:
        length = self.header("content-length")
        if length.isdecimal():
            size = int(length[:18])
            if size > self._max_body_size:
                raise self._too_large()
            if size > SMALL:
                self.budget.check(size)
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await self._next()
            part: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(part)
            if size > self._max_body_size:
                raise self._too_large()
            self._hold_body(size)
            if part or not parts:
                parts.append(part)
        if not self._scope.get(CANCELLED_BY_SERVER):
            self._watching = asyncio.ensure_future(self._watch())
        return parts[0] if len(parts) == 1 else await run(size, b"".join, parts)

    def _hold_body(self, size: int) -> None:
        """Counts the bytes of the body that have arrived."""
        if size > SMALL and size > self._held:
            self.budget.check(size, self._held)
            self.hold(size - self._held)

    def hold(self, size: int) -> None:
        """Counts bytes as in memory until the end of the request."""
        self._held += size
        self.budget.used += size

    def end(self) -> None:
        """Ends the request: its bytes no longer count."""
        self.stop_watching()
        self.budget.used -= self._held
        self._held = 0

    async def _watch(self) -> None:
        """Cancels the response once the client has disconnected."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        cancel(self._scope)

    def stop_watching(self) -> None:
        """Lets the response end even if the client disconnects: it is complete."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def _next(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise RequestError(http.HTTPStatus.BAD_REQUEST, "The client has disconnected.")
        return message

    def _too_large(self) -> RequestError:
        return RequestError(
            http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"The body has more than {self._max_body_size} bytes, which is the limit (GatewayConfig.max_body_size).",
            headers={"connection": "close"},
        )
