"""The ASGI application: routes requests, and limits them."""

from __future__ import annotations

import asyncio
import http
import logging
import urllib.parse
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.middleware.cors import CORSMiddleware

from pytriton.gateway import describe, predict
from pytriton.gateway.config import GatewayConfig
from pytriton.gateway.errors import RequestError
from pytriton.gateway.models import Models, Server
from pytriton.gateway.request import Request
from pytriton.gateway.responses import Send, send_json

LOGGER = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_MAX_REQUEST_ID = 128


class Gateway:
    """An ASGI application that serves the models of a Triton server as JSON.

    Requests reach the server through shared memory. What clients send never reaches Triton itself: only tensors
    that fit a model do.

    Args:
        triton: The server, which this process runs.
        config: The limits; ``host``, ``port`` and TLS are of no meaning where another server runs the application.

    Examples:
        >>> app.mount("/models", Gateway(triton))  # doctest: +SKIP
    """

    def __init__(self, triton: Server, config: GatewayConfig | None = None) -> None:
        self._config = config or GatewayConfig()
        self._models = Models(triton, self._config.request_timeout_s)
        self._in_flight = 0
        self._draining = False
        self._app: Application = self._respond
        if self._config.cors_origins:
            self._app = CORSMiddleware(
                self._respond,
                allow_origins=self._config.cors_origins,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "retry-after"],
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request; see the ASGI specification."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})

    def drain(self) -> None:
        """Says that it is not ready from now on; requests are still served."""
        self._draining = True

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, self._config.max_body_size)
        request_id = request.headers.get("x-request-id", "")
        if not request_id.isprintable() or not request_id.isascii() or len(request_id) > _MAX_REQUEST_ID:
            request_id = ""
        request.id = request_id or uuid.uuid4().hex
        started = False

        async def send_with_id(message: MutableMapping[str, Any]) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"].append((b"x-request-id", request.id.encode()))
            await send(message)

        try:
            await self._route(request, send_with_id)
        except RequestError as error:
            if started:
                raise
            await send_json(send_with_id, error.body(), error.status, error.headers)
        except asyncio.CancelledError:
            raise
        except Exception:
            if started:
                raise
            LOGGER.exception("Request %s to %r failed.", request.id, request.path)
            await send_json(send_with_id, {"error": {"message": "Internal error; see the gateway's log."}}, 500)

    async def _route(self, request: Request, send: Send) -> None:
        path, method = request.path, request.method
        if path.startswith("/v1/models/"):
            name, version = _model_of(path[len("/v1/models/") :])
            if method == "POST":
                return await self._limited(predict.predict, await self._models.find(name, version), request, send)
            if method == "GET":
                return await describe.model(await self._models.find(name, version), send)
        elif method == "GET" and path in ("/v1/models", "/v1/models/"):
            return await describe.models(self._models, send)
        elif method == "GET" and path == "/health/live":
            return await send_json(send, {"live": True})
        elif method == "GET" and path == "/health/ready":
            ready = not self._draining and await self._models.is_ready()
            return await send_json(send, {"ready": ready}, 200 if ready else 503)
        else:
            raise RequestError(http.HTTPStatus.NOT_FOUND, f"There is nothing at {path!r}; models are at /v1/models.")
        raise RequestError(
            http.HTTPStatus.METHOD_NOT_ALLOWED,
            f"{method} is not possible here: GET describes a model, POST sends it a request.",
            headers={"allow": "GET, POST"},
        )

    async def _limited(self, handle: Any, model: Any, request: Request, send: Send) -> None:
        if self._in_flight >= self._config.max_requests:
            raise RequestError(
                http.HTTPStatus.SERVICE_UNAVAILABLE,
                f"{self._in_flight} requests are in flight, which is the limit: try again.",
                headers={"retry-after": "1"},
            )
        self._in_flight += 1
        try:
            await handle(model, request, send, self._config)
        finally:
            self._in_flight -= 1


def _model_of(path: str) -> tuple[str, str | None]:
    name, separator, version = path.rstrip("/").partition("/versions/")
    if "/" in name:
        raise RequestError(http.HTTPStatus.NOT_FOUND, f"There is nothing at {path!r} of a model.")
    return urllib.parse.unquote(name), version if separator else None


async def _live(receive: Receive, send: Send) -> None:
    """Does nothing at the start and the end of the server that runs the application."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
