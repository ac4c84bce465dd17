"""Servers elsewhere, which requests reach over gRPC: in turn, and another one where one is down."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import logging
import time
import zlib
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from typing import Any

from pytriton.client.auth import create_auth_headers
from pytriton.client.core.deadlines import Deadline
from pytriton.client.core.grpc_transport import AsyncioGrpcTransport
from pytriton.client.core.inputs import Array
from pytriton.client.core.requests import EncodedRequest, check_token, tensors_of, wanted_of
from pytriton.client.core.sansio import Steps, run_async
from pytriton.client.core.servers import Server
from pytriton.client.core.session import Session
from pytriton.client.core.settings import DEFAULT_RESTART_TIMEOUT_S, Settings
from pytriton.client.core.streams import results
from pytriton.client.exceptions import PyTritonClientError, PyTritonClientValueError
from pytriton.client.tls import TLSConfig
from pytriton.client.url import TritonUrl
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.triton_model_config import TritonModelConfig
from pytriton.proxy.services.messages import InferenceCall
from pytriton.proxy.wire.service import SEQUENCE_END, SEQUENCE_START

LOGGER = logging.getLogger(__name__)

_REPORT_TIMEOUT_S = 5.0
_REFRESH_S = 5.0  # models may be loaded again, with another configuration
_OWN_PARAMETERS = "triton_"  # of the protocol, not of the model

# gRPC's JSON leaves zeros out.
_NONE = {"count": 0, "ns": 0}
_NO_BATCHES = {"compute_input": _NONE, "compute_infer": _NONE, "compute_output": _NONE}
_NO_REQUESTS = {"last_inference": 0, "inference_count": 0, "execution_count": 0} | {
    "inference_stats": {"success": _NONE, "fail": _NONE, "queue": _NONE, **_NO_BATCHES},
    "batch_stats": [],
}


class RemoteUpstream:
    """Servers elsewhere; see `pytriton.gateway.models.Upstream`.

    Args:
        urls: Their addresses: ``host``, ``host:port`` of gRPC, or either behind ``grpc://`` or ``grpcs://``.
        timeout_s: How long a response may take.
        access_token: Their token, if their lists of models and statistics require one.
        tls: Certificates for ``grpcs://``.

    Raises:
        PyTritonBadParameterError: An address is not one of gRPC, or the token cannot be sent.
    """

    def __init__(
        self, urls: Sequence[str], timeout_s: float, access_token: str | None = None, tls: TLSConfig | None = None
    ) -> None:
        try:
            check_token(access_token)
            parsed = [_grpc_url(url) for url in urls]
        except PyTritonClientError as error:
            raise PyTritonBadParameterError(error.message) from error
        if not parsed:
            raise PyTritonBadParameterError("The gateway has no servers: give the address of at least one.")
        self._timeout_s = timeout_s
        self._token = access_token
        self._transports = {url: AsyncioGrpcTransport(url, tls or TLSConfig()) for url in parsed}
        headers = create_auth_headers(access_token, "grpc")
        self._servers = [Server(transport, headers) for transport in self._transports.values()]
        self._version = ""

    async def start(self) -> None:
        """Does nothing: the servers need not run yet."""

    async def client(self, name: str, version: int | None) -> RemoteClient:
        """Returns a client of a model that a server has ready."""
        client = RemoteClient(name, version, self._session(name, version), self._pinned(name, version))
        await client.prepare()
        return client

    async def ready_models(self) -> list[tuple[str, int]]:
        """Returns the names and versions of all models that a server has ready."""
        indices = await self._reports("get_model_repository_index")
        entries = itertools.chain.from_iterable(indices)
        ready = {(entry["name"], int(entry["version"])) for entry in entries if entry.get("state") == "READY"}
        return sorted(ready)

    async def is_ready(self) -> bool:
        """Returns whether a server accepts requests."""
        try:
            return any(await self._reports("is_server_ready"))
        except PyTritonClientError:
            return False

    async def configuration(self, name: str, version: int | None) -> Mapping[str, Any]:
        """Returns a model's configuration, of the first server that has it ready."""
        found: Mapping[str, Any] = (await self._reports("get_model_config", name, _text(version)))[0]
        return found

    async def statistics(self, name: str | None, version: int | None) -> Mapping[str, Any]:
        """Returns the statistics of a model, or of all: the sums of all servers."""
        reports = await self._reports("get_inference_statistics", name or "", _text(version))
        return {"model_stats": _sums([each for report in reports for each in report.get("model_stats", [])])}

    async def version(self) -> str:
        """Returns Triton's version, of the first server that responds."""
        if not self._version:
            with contextlib.suppress(PyTritonClientError):
                self._version = (await self._reports("get_server_metadata"))[0].version
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
        for transport in self._transports.values():
            await transport.close()

    async def _reports(self, method: str, *args: Any) -> list[Any]:
        """Returns the responses of all servers that respond.

        Raises:
            PyTritonClientError: None does.
        """
        calls: list[Awaitable[Any]] = [server.call(method, _REPORT_TIMEOUT_S, *args)() for server in self._servers]
        responses = await asyncio.gather(*calls, return_exceptions=True)
        errors = [each for each in responses if isinstance(each, BaseException)]
        if len(errors) == len(responses):
            raise errors[0]
        for error in errors:
            if not isinstance(error, PyTritonClientError):
                raise error
        return [each for each in responses if not isinstance(each, BaseException)]

    def _session(self, name: str, version: int | None, url: TritonUrl | None = None) -> Session:
        urls = list(self._transports) if url is None else [url]
        settings = Settings(
            url=[each.with_scheme for each in urls],
            model_name=name,
            model_version=_text(version) or None,
            init_timeout_s=self._timeout_s,
            inference_timeout_s=self._timeout_s,
            ensure_model_is_ready=False,
            access_token=self._token,
            tls=None,
            retry=None,
            restart_timeout_s=DEFAULT_RESTART_TIMEOUT_S,
            shared_memory=False,
            convert_dtypes=False,
        )
        return Session(settings, self._transports.__getitem__, asyncio.sleep, lambda _: None, None)

    def _pinned(self, name: str, version: int | None) -> list[Session]:
        """Returns a session for each server, if there are several."""
        urls = list(self._transports)
        return [self._session(name, version, url) for url in urls] if len(urls) > 1 else []


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
        session: Of all servers.
        pinned: A session for each server, if there are several: a sequence stays at one.
    """

    def __init__(self, name: str, version: int | None, session: Session, pinned: list[Session]) -> None:
        self._name = name
        self._version = version
        self._session = session
        self._pinned = pinned
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

    def call(self, arrays: Mapping[str, Array]) -> InferenceCall:
        """Returns a request with inputs that have been checked."""
        return InferenceCall(self._name, arrays)

    async def infer_call(self, call: InferenceCall, timeout_s: float) -> RemoteReply:
        """Sends a request, and returns the response."""
        session, request = self._session_of(call), self._request(call, timeout_s)

        def send(request: EncodedRequest, server: Server, deadline: Deadline) -> Steps[RemoteReply]:
            name, version = session.model
            result = yield functools.partial(
                server.transport.call,
                "infer",
                deadline.left_s(),
                name,
                tensors_of(request, server.library),
                version,
                wanted_of(request, server.library),
                headers=server.headers(request.headers),
                **request.settings,
            )
            return _reply(session, server, request, result)

        deadline = session.deadline_of(request)
        return await run_async(
            session.in_span(request, lambda traced: session.send(functools.partial(send, traced), deadline))
        )

    async def stream_call(self, call: InferenceCall, timeout_s: float) -> AsyncGenerator[list[RemoteReply], None]:
        """Sends a request, and yields the responses."""
        session, request = self._session_of(call), self._request(call, timeout_s)
        responses = results(session, request)
        try:
            async for result in responses:
                yield [_reply(session, session.servers[0], request, result)]
        finally:
            await responses.aclose()

    async def _refresh(self) -> None:
        self._session.forget_config()
        try:
            await self.prepare()
        except PyTritonClientError as error:
            LOGGER.debug("The configuration of model %r was not fetched again: %s", self._name, error)

    def _session_of(self, call: InferenceCall) -> Session:
        if not call.correlation_id or not self._pinned:
            return self._session
        return self._pinned[zlib.crc32(str(call.correlation_id).encode()) % len(self._pinned)]

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
    response = result.get_response()
    parameters = {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in response.parameters.items()
        if not name.startswith(_OWN_PARAMETERS)
    }
    outputs = session.response(server, result, request)
    version = int(response.model_version) if response.model_version.isdecimal() else -1
    return RemoteReply(outputs, response.model_name, version, parameters)


def _grpc_url(url: str) -> TritonUrl:
    parsed = TritonUrl.from_url(url if not isinstance(url, str) or "://" in url else f"grpc://{url}")
    if parsed.protocol != "grpc":
        raise PyTritonClientValueError(
            f"{url!r} is an address of HTTP, and the gateway sends requests over gRPC: give "
            f"grpc://{parsed.hostname}, with the server's port for gRPC (8001 by default)."
        )
    return parsed


def _text(version: int | None) -> str:
    return "" if version is None else str(version)


def _sums(statistics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Adds up the statistics of each version of a model."""
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    for each in statistics:
        key = each["name"], each.get("version", "")
        sums[key] = _sum(sums.get(key, _NO_REQUESTS), each)
    return list(sums.values())


def _sum(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Adds up numbers, which gRPC's JSON has as text, in objects and in lists of objects with a size."""
    total = dict(one)
    for name, value in other.items():
        if isinstance(value, Mapping):
            total[name] = _sum(one.get(name, {}), value)
        elif isinstance(value, list):
            sizes = {each["batch_size"]: each for each in one.get(name, [])}
            for each in value:
                size = int(each["batch_size"])
                sizes[size] = _sum(sizes.get(size, _NO_BATCHES), each) | {"batch_size": size}
            total[name] = list(sizes.values())
        elif name in ("name", "version"):
            total[name] = value
        elif name == "last_inference":
            total[name] = max(int(value), one.get(name, 0))
        else:
            total[name] = int(value) + one.get(name, 0)
    return total
