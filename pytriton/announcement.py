"""Describes which models are served, and at which URLs."""

from __future__ import annotations

import collections
import urllib.parse
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pytriton.constants import TRITON_LOCAL_IP
from pytriton.models.description import ModelDescription
from pytriton.server.local import LocalServer
from pytriton.server.remote import RemoteServer


class ServedModel(NamedTuple):
    """A version of a model that is served.

    Attributes:
        name: The model's name.
        version: Its version.
        streams: Whether it is decoupled.
    """

    name: str
    version: int
    streams: bool = False


class Endpoints(NamedTuple):
    """The URLs at which a server is reached; None for a port that is closed.

    Attributes:
        http: URL for HTTP, like ``http://localhost:8000``.
        grpc: URL for gRPC, like ``grpc://localhost:8001``.
        metrics: URL of the metrics.
        gateway: URL of the gateway.
    """

    http: str | None = None
    grpc: str | None = None
    metrics: str | None = None
    gateway: str | None = None


def announcement(
    bound: Sequence[ModelDescription],
    server: LocalServer | RemoteServer,
    ready_models: Callable[[], Iterable[tuple[str, int]]],
    gateway_url: str | None,
) -> list[str]:
    """Describes where each model of a running server is served.

    Args:
        bound: The models that are bound.
        server: The server.
        ready_models: Returns the names and versions of all models that are ready.
        gateway_url: Where the gateway listens.
    """
    models = [ServedModel(model.name, model.version, model.config.decoupled) for model in bound]
    own = server.repository_models()
    known = {(model.name, model.version) for model in models}
    models += [ServedModel(*each) for each in (ready_models() if own else ()) if each[0] in own and each not in known]
    urls = server.urls()
    http = next((url for url in urls if not url.startswith("grpc")), None)
    grpc = next((url for url in urls if url.startswith("grpc")), None)
    return endpoint_lines(models, Endpoints(*map(_with_host_name, (http, grpc, server.metrics_url, gateway_url))))


def endpoint_lines(models: Sequence[ServedModel], endpoints: Endpoints) -> list[str]:
    """Describes where models are served, one line for each endpoint.

    Examples:
        >>> print(*endpoint_lines([ServedModel("Double", 1)], Endpoints("http://localhost:8000")))
        Model Double v1: http://localhost:8000/v2/models/Double/infer
    """
    versions = collections.Counter(model.name for model in models)
    lines = [f"Model {model.name} v{model.version}: {_url(model, endpoints, versions)}" for model in models]
    if endpoints.grpc is not None:
        lines.append(f"gRPC: {endpoints.grpc}")
    if endpoints.metrics is not None:
        lines.append(f"Metrics: {endpoints.metrics}/metrics")
    if endpoints.gateway is not None:
        lines.append(f"Gateway: {endpoints.gateway} (live page), {endpoints.gateway}/docs (every endpoint)")
    return lines


def summary(title: str, bound: Sequence[ModelDescription], server: LocalServer | RemoteServer | None) -> str:
    """Describes a server's state, its URLs and the bound models; sends no request."""
    if server is None:
        lines = [f"{title}: not started"]
    else:
        version = "" if server.version is None else f", Triton {server.version}"
        lines = [f"{title}: {server.state.value}{version}", f"  {', '.join(server.urls())}"]
    return "\n".join([*lines, *(f"  {model}" for model in bound)])


def _url(model: ServedModel, endpoints: Endpoints, versions: collections.Counter[str]) -> str:
    if endpoints.http is None or (model.streams and endpoints.grpc is not None):
        return str(endpoints.grpc)  # HTTP does not carry all streams
    version = f"/versions/{model.version}" if versions[model.name] > 1 else ""
    return f"{endpoints.http}/v2/models/{urllib.parse.quote(model.name)}{version}/infer"


def _with_host_name(url: str | None) -> str | None:
    return None if url is None else url.replace(f"//{TRITON_LOCAL_IP}:", "//localhost:")
