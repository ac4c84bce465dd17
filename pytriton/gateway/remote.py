"""Servers elsewhere, to which requests are sent over gRPC: in turn, or to another one if one is down."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import logging
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from pytriton.client.core.background import BackgroundTasks
from pytriton.client.core.connecting import ConnectOptions
from pytriton.client.core.deadlines import Deadline
from pytriton.client.core.failures import is_response, is_silence
from pytriton.client.core.grpc.asyncio_transport import AsyncioGrpcTransport
from pytriton.client.core.inputs import Array
from pytriton.client.core.requests import EncodedRequest, check_token, tensors_of, wanted_of
from pytriton.client.core.sansio import Steps, T, run_async
from pytriton.client.core.servers import Server
from pytriton.client.core.session import Session
from pytriton.client.core.settings import DEFAULT_RESTART_TIMEOUT_S, Settings
from pytriton.client.core.streams import results
from pytriton.client.exceptions import PyTritonClientClosedError, PyTritonClientError, PyTritonClientValueError
from pytriton.client.tls import TLSConfig
from pytriton.client.url import ServerUrls, TritonUrl
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.gateway.sums import sums
from pytriton.model_config.triton_model_config import TritonModelConfig
from pytriton.proxy.services.messages import InferenceCall
from pytriton.proxy.wire.service import SEQUENCE_END, SEQUENCE_START

LOGGER = logging.getLogger(__name__)

_REPORT_TIMEOUT_S = 5.0
_SILENT_TIMEOUT_S = 1.0  # for a server that has not responded before
_REFRESH_S = 5.0  # models may be reloaded, with another configuration
_OWN_PARAMETERS = "triton_"  # of the protocol, not of the model


class RemoteUpstream:
    """Servers elsewhere; see `pytriton.gateway.models.Upstream`.

    Args:
        urls: Their addresses: ``host``, ``host:port`` of gRPC, or either after ``grpc://`` or ``grpcs://``. Or a
            function that immediately returns the current ones; see `pytriton.client.base.BaseModelClient`.
        timeout_s: How long a response may take.
        access_token: Their token, if their lists of models and statistics require one.
        tls: Certificates for ``grpcs://``.

    Raises:
        PyTritonBadParameterError: An address is not a gRPC address, or the token cannot be sent.
    """

    def __init__(
        self,
        urls: Sequence[str] | Callable[[], Sequence[str]],
        timeout_s: float,
        access_token: str | None = None,
        tls: TLSConfig | None = None,
    ) -> None:
        try:
            check_token(access_token)
            self._urls: ServerUrls = (
                _GrpcAddresses(urls, self._follow) if callable(urls) else [_grpc_url(url).with_scheme for url in urls]
            )
        except PyTritonClientError as error:
            raise PyTritonBadParameterError(error.message) from error
        if not self._urls:
            raise PyTritonBadParameterError("The gateway has no servers: give the address of at least one.")
        self._timeout_s = timeout_s
        self._token = access_token
        self._tls = tls or TLSConfig()
        self._transports: dict[TritonUrl, _SharedTransport] = {}
        self._background = BackgroundTasks()
        self._queries: set[asyncio.Future[Any]] = set()
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._all = self._session("any", None)  # for queries to all servers
        self._servers = self._all.server_set
        self._version = ""

    async def start(self) -> None:
        """Logs which servers cannot be reached, in the background: they need not be running yet."""
        with contextlib.suppress(PyTritonClientError):  # of the function that returns the addresses
            self._probe()

    async def client(self, name: str, version: int | None) -> RemoteClient:
        """Returns a client of a model that is ready on a server."""
        session = self._session(name, version)
        client = RemoteClient(name, version, session)
        try:
            await client.prepare()
        except BaseException:  # no one will use its connections
            self._sessions.discard(session)
            for server in session.server_set.end():
                await server.transport.close()
            raise
        return client

    async def ready_models(self) -> list[tuple[str, int]]:
        """Returns the names and versions of all models that are ready on a server."""
        indices = await self._reports("get_model_repository_index")
        entries = itertools.chain.from_iterable(indices)
        ready = {(entry["name"], int(entry["version"])) for entry in entries if entry.get("state") == "READY"}
        return sorted(ready)

    async def is_ready(self) -> bool:
        """Returns whether a server accepts requests, as soon as one does: another one may hang."""
        try:
            probes = self._probe()
        except PyTritonClientError:  # of the function that returns the addresses
            return False
        for each in asyncio.as_completed(probes):
            if await each:
                return True
        return False

    async def configuration(self, name: str, version: int | None) -> Mapping[str, Any]:
        """Returns a model's configuration from the first server on which it is ready."""
        found: Mapping[str, Any] = await self._first_report("get_model_config", name, _text(version))
        return found

    async def statistics(self, name: str | None, version: int | None) -> Mapping[str, Any]:
        """Returns the statistics of a model, or of all models, summed over all servers."""
        reports = await self._reports("get_inference_statistics", name or "", _text(version))
        return {"model_stats": sums([each for report in reports for each in report.get("model_stats", [])])}

    async def version(self) -> str:
        """Returns Triton's version, from the first server that responds."""
        if not self._version:
            with contextlib.suppress(PyTritonClientError):
                self._version = (await self._first_report("get_server_metadata")).version
        return self._version

    def description(self, name: str) -> str:
        """Returns nothing: the servers do not report it."""
        return ""

    def instances(self, name: str) -> tuple[int | None, int | None]:
        """Returns nothing: the servers do not report it."""
        return None, None

    def restarts(self) -> int | None:
        """Returns nothing: the servers do not report it."""
        return None

    async def close(self) -> None:
        """Closes the connections."""
        for session in self._sessions:
            session.server_set.end()
        for transport in list(self._transports.values()):
            await transport.close_for_all()
        await self._background.wait()
        await asyncio.gather(*self._queries, return_exceptions=True)

    def _held(self) -> list[Server]:
        """Returns the current servers; each is to be released."""
        return [server for server in self._servers.look() if self._servers.hold(server)]

    async def _reports(self, method: str, *args: Any) -> list[Any]:
        """Returns the responses of all servers that respond.

        Raises:
            PyTritonClientError: No server responds.
        """
        calls = [self._ask(server, method, *args) for server in self._held()]
        responses = await asyncio.gather(*calls, return_exceptions=True)
        if not responses:
            raise self._servers.no_address()
        errors = [each for each in responses if isinstance(each, BaseException)]
        if len(errors) == len(responses):
            raise errors[0]
        for error in errors:
            if not isinstance(error, PyTritonClientError):
                raise error
        return [each for each in responses if not isinstance(each, BaseException)]

    async def _first_report(self, method: str, *args: Any) -> Any:
        """Returns the first response, however long other servers hang.

        Raises:
            PyTritonClientError: No server responds.
        """
        failed: PyTritonClientError = self._servers.no_address()
        for each in asyncio.as_completed(
            self._in_background(self._ask(server, method, *args) for server in self._held())
        ):
            try:
                return await each
            except PyTritonClientError as error:
                failed = error
        raise failed

    def _probe(self) -> list[asyncio.Future[bool]]:
        """Starts to ask each server whether it is ready."""
        return self._in_background(self._is_ready(server) for server in self._held())

    async def _is_ready(self, server: Server) -> bool:
        try:
            return bool(await self._ask(server, "is_server_ready"))
        except PyTritonClientError:
            return False

    async def _ask(self, server: Server, method: str, *args: Any) -> Any:
        """Sends a query to a server, releases it, and logs if it has stopped or begun to respond."""
        try:
            response = await server.call(
                method, _SILENT_TIMEOUT_S if server.was_left_out else _REPORT_TIMEOUT_S, *args
            )()
        except PyTritonClientClosedError:
            raise
        except PyTritonClientError as error:
            if not is_response(error):
                if not server.was_left_out:
                    LOGGER.warning("%s", error.message)
                server.mark_down(is_silent=is_silence(error))
            raise
        finally:
            self._servers.release(server)
        if server.was_left_out:
            LOGGER.warning("The server at %s responds again.", server.url)
            server.mark_up()
        return response

    def _in_background(self, queries: Iterable[Coroutine[Any, Any, T]]) -> list[asyncio.Future[T]]:
        """Starts queries, which end by themselves, even if nothing waits for them any more."""
        started = [asyncio.ensure_future(query) for query in queries]
        self._queries.update(started)
        for each in started:
            each.add_done_callback(self._forget_query)
        return list(started)

    def _forget_query(self, query: asyncio.Future[Any]) -> None:
        self._queries.discard(query)
        if not query.cancelled():
            query.exception()  # marks it as retrieved

    def _follow(self) -> None:
        """Makes idle models disconnect from removed servers, too."""

        def look() -> None:
            for session in list(self._sessions):
                with contextlib.suppress(PyTritonClientError):  # the gateway is closing, or the next request reports it
                    session.server_set.look()

        asyncio.get_running_loop().call_soon(look)

    def _session(self, name: str, version: int | None) -> Session:
        # A client is told to retry soon, rather than made to wait for a server that does not exist.
        init_timeout_s = min(self._timeout_s, DEFAULT_RESTART_TIMEOUT_S) if callable(self._urls) else self._timeout_s
        settings = Settings(
            url=self._urls,
            model_name=name,
            model_version=_text(version) or None,
            init_timeout_s=init_timeout_s,
            inference_timeout_s=self._timeout_s,
            ensure_model_is_ready=False,
            access_token=self._token,
            tls=self._tls,
            retry=None,
            restart_timeout_s=DEFAULT_RESTART_TIMEOUT_S,
            shared_memory=False,
            convert_dtypes=False,
        )
        transport_to = functools.partial(self._transport_to, options=settings.connect_options)
        session = Session(settings, transport_to, asyncio.sleep, lambda _: None, None, self._background.run)
        silent = {server.url for server in self._servers.present if server.is_silent} if self._sessions else ()
        for server in session.server_set.present:
            if server.url in silent:
                server.mark_down(is_silent=True)
        self._sessions.add(session)
        return session

    def _transport_to(self, url: TritonUrl, options: ConnectOptions) -> _SharedTransport:
        """Returns the transport to a server, which all models share."""
        transport = self._transports.get(url)
        if transport is None:
            transport = self._transports[url] = _SharedTransport(url, options, self._forget)
        transport.users += 1
        return transport

    def _forget(self, transport: _SharedTransport) -> None:
        if self._transports.get(transport.url) is transport:
            del self._transports[transport.url]


class _SharedTransport(AsyncioGrpcTransport):
    """A transport that is closed when the last model closes it.

    Args:
        url: The server's URL.
        options: How to connect.
        forget: Called before it is closed.
    """

    def __init__(self, url: TritonUrl, options: ConnectOptions, forget: Callable[[_SharedTransport], None]) -> None:
        super().__init__(url, options)
        self.users = 0
        self._forget_transport = forget

    async def close(self) -> None:
        """Closes the connection unless another model uses it."""
        self.users -= 1
        if self.users == 0:
            await self.close_for_all()

    async def close_for_all(self) -> None:
        """Closes the connection."""
        self._forget_transport(self)
        await super().close()


@dataclasses.dataclass
class RemoteReply:
    """A response of a model; see `pytriton.gateway.models.Reply`."""

    outputs: dict[str, Array]
    model: str
    version: int
    parameters: dict[str, Any]


class RemoteClient:
    """Sends requests to one model; see `pytriton.gateway.models.Client`.

    Args:
        name: The model's name.
        version: Its version; None is the latest.
        session: The session with all servers.
    """

    def __init__(self, name: str, version: int | None, session: Session) -> None:
        self._name = name
        self._version = version
        self._session = session
        self._fetched = 0.0
        self._fetching: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Gets the model's configuration.

        Raises:
            PyTritonClientError: No server has the model ready, or none responds.
        """
        self._fetched = time.monotonic()
        await run_async(self._session.prepare())

    @property
    def model_config(self) -> TritonModelConfig:
        """The model's configuration, which is fetched again in the background from time to time."""
        config = self._session.config
        assert config is not None
        if time.monotonic() - self._fetched > _REFRESH_S and (self._fetching is None or self._fetching.done()):
            self._fetched = time.monotonic()
            self._fetching = asyncio.get_running_loop().create_task(self._refresh())
        return config

    async def refresh(self) -> None:
        """Does nothing: see `model_config`."""

    def call(self, arrays: Mapping[str, Array]) -> InferenceCall:
        """Returns a request with inputs that have been checked."""
        return InferenceCall(self._name, arrays)

    async def infer_call(self, call: InferenceCall, timeout_s: float) -> RemoteReply:
        """Sends a request, and returns the response."""
        session, request, key = self._session, self._request(call, timeout_s), call.correlation_id or None

        def send(request: EncodedRequest, server: Server, deadline: Deadline) -> Steps[RemoteReply]:
            if request.span is not None:
                request.span.sent_to(server.transport.url.hostname, server.transport.url.port)
            name, version = session.model
            result = yield functools.partial(
                server.transport.call,
                "infer",
                deadline.left_s(),
                name,
                tensors_of(request),
                version,
                wanted_of(request),
                headers=server.headers(request.headers),
                **request.settings,
            )
            return _reply(session, server, request, result)

        deadline = session.deadline_of(request)
        return await run_async(
            session.in_span(
                request, lambda traced: session.attempts.send(functools.partial(send, traced), deadline, key)
            )
        )

    async def stream_call(self, call: InferenceCall, timeout_s: float) -> AsyncGenerator[list[RemoteReply], None]:
        """Sends a request, and yields the responses."""
        request = self._request(call, timeout_s)
        responses = results(self._session, request, call.correlation_id or None)
        try:
            async for server, result in responses:
                yield [_reply(self._session, server, request, result)]
        finally:
            await responses.aclose()

    async def _refresh(self) -> None:
        self._session.forget_config()
        try:
            await self.prepare()
        except PyTritonClientError as error:
            LOGGER.debug("The configuration of model %r could not be fetched again: %s", self._name, error)

    def _request(self, call: InferenceCall, timeout_s: float) -> EncodedRequest:
        specs = {spec.name: spec for spec in self.model_config.inputs}
        settings: dict[str, Any] = {"request_id": call.request_id}
        if call.parameters:
            settings["parameters"] = dict(call.parameters)
        if call.priority:
            settings["priority"] = call.priority
        if call.timeout_us:
            settings["timeout"] = call.timeout_us
        if call.correlation_id:
            settings["sequence_id"] = call.correlation_id
            settings["sequence_start"] = bool(call.flags & SEQUENCE_START)
            settings["sequence_end"] = bool(call.flags & SEQUENCE_END)
        arrays: list[Any] = [(specs[name], array) for name, array in call.inputs.items()]
        return EncodedRequest(arrays, single=False, settings=settings, outputs=call.outputs, timeout_s=timeout_s)


def _reply(session: Session, server: Server, request: EncodedRequest, result: Any) -> RemoteReply:
    response = result.message
    parameters = {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in response.parameters.items()
        if not name.startswith(_OWN_PARAMETERS)
    }
    outputs = session.response(server, result, request)
    version = int(response.model_version) if response.model_version.isdecimal() else -1
    return RemoteReply(outputs, response.model_name, version, parameters)


class _GrpcAddresses:
    """Wraps a function that returns addresses of servers, and converts them to gRPC URLs.

    An invalid address counts as a failure of the function, not of a request: the earlier addresses stay.

    Args:
        addresses: Returns the addresses as they are now.
        changed: Called when they have changed.
    """

    def __init__(self, addresses: Callable[[], Sequence[str]], changed: Callable[[], None]) -> None:
        self.func = addresses
        self._changed = changed
        self._given: list[str] = []
        self._urls: list[str] = []

    def __call__(self) -> list[str]:
        addresses = self.func()
        if not isinstance(addresses, Sequence) or isinstance(addresses, str | bytes):
            raise PyTritonClientValueError(f"it returned {addresses!r}, which is not a list of addresses")
        given = list(addresses)
        if given != self._given:
            self._urls = [_grpc_url(address).with_scheme for address in given]
            self._given = given
            self._changed()
        return self._urls


def _grpc_url(url: str) -> TritonUrl:
    parsed = TritonUrl.from_url(url if not isinstance(url, str) or "://" in url else f"grpc://{url}")
    if parsed.protocol != "grpc":
        raise PyTritonClientValueError(
            f"{url!r} is an HTTP address, but the gateway sends requests over gRPC: give "
            f"grpc://{parsed.hostname}, with the server's port for gRPC (8001 by default)."
        )
    return parsed


def _text(version: int | None) -> str:
    return "" if version is None else str(version)
