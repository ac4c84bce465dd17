"""The ASGI application: routes requests, and limits them."""

from __future__ import annotations

import asyncio
import contextlib
import http
import itertools
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, MutableMapping, Sequence
from typing import Any

from starlette.middleware.cors import CORSMiddleware

from pytriton.client.tls import TLSConfig
from pytriton.exceptions import PyTritonError
from pytriton.gateway import describe, open_inference, openapi, pages, predict, status
from pytriton.gateway.access import ApiKey, KeyStore
from pytriton.gateway.access_log import log_access
from pytriton.gateway.body_budget import SMALL, BodyBudget
from pytriton.gateway.config import GatewayConfig
from pytriton.gateway.errors import RETRY, RequestError, stopping
from pytriton.gateway.local import LocalUpstream, Triton
from pytriton.gateway.models import Models, Upstream
from pytriton.gateway.openai.endpoints import PATHS, OpenAIEndpoints
from pytriton.gateway.openai.errors import error_body
from pytriton.gateway.origins import OriginPolicy, origins_of
from pytriton.gateway.remote import RemoteUpstream
from pytriton.gateway.request import Request, Scope
from pytriton.gateway.responses import Send, send_json, written_parts
from pytriton.gateway.stop_event import StopEvent
from pytriton.gateway.streams import EVENTS
from pytriton.gateway.tracing import TracedApplication
from pytriton.gateway.traffic import Traffic
from pytriton.json_logs import about, is_collecting

LOGGER = logging.getLogger(__name__)

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_MAX_REQUEST_ID = 128
_ID_PREFIX = secrets.token_hex(8)  # of this process
_numbers = itertools.count()
_MODELS = "/v1/models/"
_PROTOCOL = "/v2"
_ASSETS = "/assets/"
_PAGES = {"": "live", "/": "live", "/docs": "docs"}
_HEALTH = ("/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready")


class Gateway:
    """An ASGI application that serves the models of Triton as JSON.

    Requests of clients are never forwarded to Triton as they are: only tensors that fit a model are.

    Args:
        triton: The server of this process, to which requests are sent through shared memory. Or the addresses of
            servers elsewhere, to which requests are sent over gRPC, in turn: ``host``, ``host:port``,
            ``grpc://host:port`` or ``grpcs://host:port``; the port is 8001 by default. Or a function without arguments
            that immediately returns the current list of such addresses: it is called before each request. While the
            list is empty, the gateway is not ready.
        config: The settings; ``host``, ``port`` and TLS have no effect if another server runs the application.
        access_token: The token of servers elsewhere, whose lists of models and statistics require it by default.
        tls: Certificates for servers at ``grpcs://``.

    Raises:
        PyTritonBadParameterError: An address is not a gRPC address, or the file with the API keys cannot be read.

    Examples:
        >>> app.mount("/models", Gateway(triton))  # doctest: +SKIP
        >>> app = Gateway(["host1:8001", "host2:8001"])  # doctest: +SKIP
    """

    def __init__(
        self,
        triton: Triton | Sequence[str] | str | Callable[[], Sequence[str]],
        config: GatewayConfig | None = None,
        *,
        access_token: str | None = None,
        tls: TLSConfig | None = None,
    ) -> None:
        self._config = config or GatewayConfig()
        timeout_s = self._config.request_timeout_s
        upstream: Upstream
        if isinstance(triton, str | Sequence) or callable(triton):
            upstream = RemoteUpstream([triton] if isinstance(triton, str) else triton, timeout_s, access_token, tls)
        else:
            upstream = LocalUpstream(triton, timeout_s)
        self._models = Models(upstream, timeout_s)
        self._keys = None if self._config.api_keys is None else KeyStore(self._config.api_keys)
        self._openai = OpenAIEndpoints(self._config.openai, self._models, self._config.max_samples)
        self._origins = OriginPolicy(self._config.cors_origins, self._config.allowed_hosts)
        self._traffic = Traffic()
        self._budget = BodyBudget(self._config.max_total_body_size, self._config.max_stream_backlog)
        self._readiness: asyncio.Future[bool] | None = None  # the query in progress
        self._in_flight = 0
        self.lost = 0
        """Number of requests that took longer than the gateway's exit timeout."""
        self._draining = False
        self._stopping = StopEvent()
        self._app: Application = TracedApplication(self._respond, self._config.continue_traces)
        if self._config.cors_origins:
            self._app = CORSMiddleware(
                self._app,
                allow_origins=origins_of(self._config.cors_origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "retry-after"],
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request; see the ASGI specification."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})

    def drain(self) -> None:
        """Makes the gateway report that it is not ready; requests are still served."""
        self._draining = True

    def end_streams(self) -> None:
        """Ends all streams with an error; called in the event loop when the gateway is about to stop."""
        self._stopping.set()

    @contextlib.asynccontextmanager
    async def lifespan(self, _: object = None) -> AsyncIterator[None]:
        """Manages the lifespan of an application in which the gateway is mounted.

        At the start, it starts the server unless it is running. At the end, the gateway reports that it is not ready.

        Examples:
            >>> gateway = Gateway(triton)  # doctest: +SKIP
            >>> app = FastAPI(lifespan=gateway.lifespan)  # doctest: +SKIP
            >>> app.mount("/models", gateway)  # doctest: +SKIP
        """
        await self._models.upstream.start()
        try:
            yield
        finally:
            self.drain()
            await self._models.upstream.close()

    async def _live(self, receive: Receive, send: Send) -> None:
        """Handles the lifespan events of the server that runs the application."""
        await receive()
        try:
            async with self.lifespan():
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except PyTritonError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, self._config.max_body_size, self._budget, self._stopping)
        request_id = request.header("x-request-id")
        if request_id and not _is_request_id(request_id):
            request_id = ""
        if names := self._config.forwarded_names:
            request.forwarded = {name: request.text(name) for name in names if name in request.headers}
        request.id = request_id or f"{_ID_PREFIX}{next(_numbers):x}"
        with about(request) if is_collecting() else contextlib.nullcontext():
            if not self._config.access_log or request.path in _HEALTH:
                await self._respond_to(request, send)
                return
            arrived, code = time.monotonic(), 0

            async def send_and_note(message: MutableMapping[str, Any]) -> None:
                nonlocal code
                code = message.get("status", code)
                await send(message)

            try:
                await self._respond_to(request, send_and_note)
            finally:
                log_access(request, scope, code, time.monotonic() - arrived)

    async def _respond_to(self, request: Request, send: Send) -> None:
        started = False

        async def send_with_id(message: MutableMapping[str, Any]) -> None:
            nonlocal started
            if message["type"] == "http.response.body" and not message.get("more_body"):
                request.stop_watching()
            if message["type"] == "http.response.start":
                started = True
                message["headers"].append((b"x-request-id", request.id.encode()))
            elif len(message["body"]) > SMALL and not message.get("more_body"):
                request.hold(len(message["body"]))
                for part in written_parts(message["body"], is_encrypted=request.is_encrypted):
                    await send({**message, "body": part, "more_body": True})
                message = {"type": "http.response.body"}  # sending it waits until the client has received the body
            await send(message)

        async def send_error(error: RequestError) -> None:
            await send_json(send_with_id, _body_of(error, request), error.status, error.headers)

        try:
            await self._route(request, send_with_id)
        except (RequestError, RecursionError) as failure:
            if started:
                raise
            await send_error(failure if isinstance(failure, RequestError) else _too_deep())
        except asyncio.CancelledError:
            if request.client_has_disconnected:
                return
            if not self._draining:
                raise
            self.lost += 1
            if not started:
                await send_error(stopping())
        except Exception:
            if started:
                raise
            LOGGER.exception("Request %s to %r failed.", request.id, request.path)
            await send_error(
                RequestError(http.HTTPStatus.INTERNAL_SERVER_ERROR, "Internal error; see the gateway's log.")
            )
        finally:
            request.end()

    async def _route(self, request: Request, send: Send) -> None:
        path, method = request.path, request.method
        if method == "GET" and path in _HEALTH:
            await self._health(path, send)
            return
        self._origins.check_host(request)
        if method == "GET" and path in _PAGES:
            await pages.send_page(_PAGES[path], send)
            return
        if method == "GET" and path.startswith(_ASSETS):
            await pages.send_asset(path[len(_ASSETS) :], send)
            return
        if not _describes(request):
            self._origins.check_origin(request)
        key = None if self._keys is None else self._keys.find(request.headers)
        request.key_name = "" if key is None else key.name
        await self._recorded(request, self._serve(path, request, send, key), key)

    async def _serve(self, path: str, request: Request, send: Send, key: ApiKey | None) -> None:
        method = request.method
        if path.rstrip("/") == "/v1/models":
            _allow(method, "GET")
            await describe.models(self._models, self._openai, send, key)
        elif path.startswith(_MODELS):
            await self._to_model(path[len(_MODELS) :], request, send, key)
        elif path.startswith(_PROTOCOL):
            await self._to_protocol(path, request, send, key)
        elif path in PATHS:
            _allow(method, "POST")
            await self._openai.respond(request, send, key)
        elif path == "/status":
            _allow(method, "GET")
            await send_json(send, await status.status(self._models, self._traffic, key))
        elif path == "/openapi.json":
            _allow(method, "GET")
            document = await openapi.document(self._models, key, request.prefix, self._keys is not None)
            await send_json(send, document)
        else:
            raise RequestError(
                http.HTTPStatus.NOT_FOUND,
                f"There is nothing at {path[:200]!r}; models are at /v1/models, their API is at /docs.",
            )

    async def _to_model(self, path: str, request: Request, send: Send, key: ApiKey | None) -> None:
        _allow(request.method, "GET", "POST")
        describes = _describes(request)
        name, version, action = _split(path)
        public_name = name
        if describes and self._openai.model_of(path) != path:  # public names may contain slashes
            name, version, action, public_name = path, None, "", path
        if action:
            message = f"There is nothing at {request.path[:200]!r}; the model is at {_MODELS + name[:100]!r}."
            raise RequestError(http.HTTPStatus.NOT_FOUND, message)
        if describes:
            name = self._openai.model_of(name)
        if key is not None:
            key.check_model(name)
        model = await self._models.find(name, version)
        if describes:
            await describe.model(model, public_name, send)
            return
        request.model = name
        await predict.predict(model, request, send, self._config)

    async def _to_protocol(self, path: str, request: Request, send: Send, key: ApiKey | None) -> None:
        rest = path[len(_PROTOCOL) :].rstrip("/")
        if rest == "":
            _allow(request.method, "GET")
            await open_inference.server_metadata(self._models, send)
            return
        if rest == "/repository/index":
            _allow(request.method, "POST")
            await request.body()
            await open_inference.index(self._models, send, key)
            return
        if not rest.startswith("/models/"):
            raise RequestError(http.HTTPStatus.NOT_FOUND, f"The gateway has nothing at {path[:200]!r}.")
        name, version, action = _split(rest[len("/models/") :])
        if (name, version, action) == ("stats", None, ""):
            _allow(request.method, "GET")
            await open_inference.statistics(self._models, None, None, send, key)
            return
        if key is not None:
            key.check_model(name)
        _allow(request.method, "POST" if action == "infer" else "GET")
        model = await self._models.find(name, version)
        match action:
            case "infer":
                request.model = name
                await open_inference.infer(model, request, send, self._config, key)
                return
            case "":
                await open_inference.model_metadata(self._models, model, send)
                return
            case "ready":
                await open_inference.model_readiness(self._models, name, version, send)
                return
            case "config":
                await open_inference.model_config(self._models, name, version, send)
                return
            case "stats":
                await open_inference.statistics(self._models, name, version, send, key)
                return
        raise RequestError(http.HTTPStatus.NOT_FOUND, f"The gateway has nothing at {path[:200]!r}.")

    async def _health(self, path: str, send: Send) -> None:
        if path.endswith("/live"):
            await send_json(send, {"live": True})
            return
        ready = not self._draining and await self._is_ready()
        await send_json(send, {"ready": ready}, 200 if ready else 503)

    async def _is_ready(self) -> bool:
        """Queries the server once for all concurrent requests, since these need no API key."""
        if self._readiness is None or self._readiness.done():
            self._readiness = asyncio.ensure_future(self._models.upstream.is_ready())
        return await asyncio.shield(self._readiness)

    async def _recorded(self, request: Request, response: Coroutine[Any, Any, None], key: ApiKey | None) -> None:
        started = time.monotonic()
        try:
            await self._limited(request, response, key)
        except RequestError as error:
            self._record(request, started, error, key)
            raise
        except asyncio.CancelledError:
            if request.client_has_disconnected:
                self._record(request, started, None, key)
            raise
        self._record(request, started, request.stream_error, key)

    def _record(self, request: Request, started: float, error: RequestError | None, key: ApiKey | None) -> None:
        if not request.model:
            return
        if error is None:
            self._traffic.record(request.model, started)
        else:
            self._traffic.record(request.model, started, error.status, error.message, _hash_of(key))

    async def _limited(self, request: Request, response: Coroutine[Any, Any, None], key: ApiKey | None) -> None:
        try:
            if self._in_flight >= self._config.max_requests:
                raise RequestError(
                    http.HTTPStatus.SERVICE_UNAVAILABLE,
                    f"{self._in_flight} requests are in flight, which is the limit: try again.",
                    headers=RETRY,
                )
            if key is not None:
                key.take()
        except RequestError:
            response.close()
            request.model = self._model_run_by(request)
            raise
        self._in_flight += 1
        if key is not None:
            key.in_flight += 1
        try:
            await response
        finally:
            self._in_flight -= 1
            if key is not None:
                key.in_flight -= 1

    def _model_run_by(self, request: Request) -> str:
        """Returns the model that a request would run, if it is known to exist."""
        if _describes(request):
            return ""
        path = request.path.removeprefix(_PROTOCOL if request.path.startswith(_PROTOCOL) else "/v1")
        name, version, _ = _split(path.removeprefix("/models/"))
        return name if self._models.is_known(name, version) else ""


def _hash_of(key: ApiKey | None) -> str:
    return "" if key is None else key.hash


def _describes(request: Request) -> bool:
    """Returns whether a request only reads descriptions, by its method; a stream of events runs a model."""
    return request.method == "GET" and not request.accepts(EVENTS)


def _too_deep() -> RequestError:
    return RequestError(http.HTTPStatus.BAD_REQUEST, "The body is nested too deeply.")


def _is_request_id(text: str) -> bool:
    return text.isprintable() and text.isascii() and len(text) <= _MAX_REQUEST_ID


def _body_of(error: RequestError, request: Request) -> dict[str, Any]:
    path = request.path
    if path.startswith(_PROTOCOL):
        return error.body_of_protocol()
    is_of_openai = path in PATHS or (_describes(request) and path.startswith(_MODELS.rstrip("/")))
    return error_body(error) if is_of_openai else error.body()


def _split(path: str) -> tuple[str, str | None, str]:
    """Splits ``<name>[/versions/<version>][/<action>]``."""
    name, _, rest = path.rstrip("/").partition("/")
    version = None
    if rest.startswith("versions/"):
        version, _, rest = rest.removeprefix("versions/").partition("/")
    return name, version, rest


def _allow(method: str, *methods: str) -> None:
    if method not in methods:
        allowed = ", ".join(methods)
        raise RequestError(
            http.HTTPStatus.METHOD_NOT_ALLOWED,
            f"{method[:20]} is not allowed here: use {allowed}.",
            headers={"allow": allowed},
        )
