"""Functions for tritonclient's own blocking clients, and for URLs."""

from __future__ import annotations

import contextlib
import enum
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from pytriton.client.auth import create_auth_headers
from pytriton.client.core.deadlines import check_timeout
from pytriton.client.core.grpc import given_transport as given_grpc
from pytriton.client.core.http.given_transport import GivenHttpTransport, connect
from pytriton.client.core.readiness import wait_until_ready
from pytriton.client.core.sansio import run
from pytriton.client.core.server_set import ServerSet
from pytriton.client.core.servers import Server
from pytriton.client.core.session import read_config
from pytriton.client.core.settings import DEFAULT_INIT_TIMEOUT_S, LATEST_MODEL_VERSION, version_of
from pytriton.client.exceptions import (
    PyTritonClientInvalidUrlError,
    PyTritonClientModelUnavailableError,
    PyTritonClientValueError,
)
from pytriton.client.exceptions import PyTritonClientTimeoutError as PyTritonClientTimeoutError
from pytriton.client.tls import TLSConfig
from pytriton.client.url import TritonUrl
from pytriton.client.warnings import NotSupportedTimeoutWarning as NotSupportedTimeoutWarning
from pytriton.constants import DEFAULT_GRPC_PORT, DEFAULT_HTTP_PORT
from pytriton.model_config.triton_model_config import TritonModelConfig

if TYPE_CHECKING:
    import tritonclient.grpc
    import tritonclient.http

    InferenceServerClient: TypeAlias = tritonclient.grpc.InferenceServerClient | tritonclient.http.InferenceServerClient

__all__ = [
    "DEFAULT_GRPC_PORT",
    "DEFAULT_HTTP_PORT",
    "LATEST_MODEL_VERSION",
    "ModelState",
    "TritonUrl",
    "create_auth_headers",
    "create_client_from_url",
    "get_model_config",
    "get_model_state",
    "wait_for_model_ready",
    "wait_for_server_ready",
]

_TIMEOUT_S = 30.0
_NETWORK_TIMEOUT_S = 60.0


class ModelState(enum.Enum):
    """The state of a model at a server.

    Attributes:
        LOADING: It is being loaded.
        UNLOADING: It is being unloaded.
        UNAVAILABLE: It is not loaded, or could not be.
        READY: It accepts requests.
    """

    LOADING = "LOADING"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"
    READY = "READY"


def create_client_from_url(url: str, network_timeout_s: float | None = None) -> InferenceServerClient:
    """Creates tritonclient's own blocking client.

    Args:
        url: The server's URL; see `TritonUrl.from_url`.
        network_timeout_s: Over HTTP, the time limit for connecting and for each part of a response; 60 s by default.
            Over gRPC, each call has its own timeout.

    Returns:
        The client of the URL's protocol, to be closed by the caller.

    Raises:
        PyTritonClientInvalidUrlError: The URL is not valid.
    """
    parsed = TritonUrl.from_url(url)
    client: InferenceServerClient
    if parsed.protocol == "grpc":
        client = given_grpc.connect(parsed)
    else:
        client = connect(parsed, TLSConfig(), network_timeout_s or _NETWORK_TIMEOUT_S)
    return client


def get_model_state(
    client: InferenceServerClient,
    model_name: str,
    model_version: str | None = None,
    headers: Mapping[str, Any] | None = None,
) -> ModelState:
    """Returns the state of a model at a server.

    Args:
        client: tritonclient's own client.
        model_name: The model's name.
        model_version: Its version. By default, the model is ready if any of its versions is; otherwise it has the state
            of its latest version.
        headers: Headers of HTTP, or gRPC's metadata, such as those of `create_auth_headers`.

    Returns:
        The state.

    Raises:
        PyTritonClientModelUnavailableError: The server has no such model.
        PyTritonClientTimeoutError: The server does not respond.
        PyTritonClientInferenceServerError: It cannot be reached, or responds with an error.
    """
    version = version_of(model_version)
    server = _server_of(client, headers)
    index = server.call("get_model_repository_index", _TIMEOUT_S)()
    return state_in(index, model_name, version, f"The server at {server.url}")


def get_model_config(
    client: InferenceServerClient,
    model_name: str,
    model_version: str | None = None,
    timeout_s: float | None = None,
    headers: Mapping[str, Any] | None = None,
) -> TritonModelConfig:
    """Waits until a model is ready, like `wait_for_model_ready`, and returns its configuration."""
    wait_for_model_ready(client, model_name, model_version, timeout_s, headers)
    server, version = _server_of(client, headers), version_of(model_version)
    return read_config(server.call("get_model_config", _TIMEOUT_S, model_name, version)(), server.url, version)


def state_in(index: Sequence[Mapping[str, Any]], name: str, version: str, server: str) -> ModelState:
    """Returns the state of a model in a server's index; ``server`` is its name in the error.

    Raises:
        PyTritonClientModelUnavailableError: The index has no such model.
    """
    versions = {
        int(entry.get("version") or 0): ModelState(entry.get("state") or "UNAVAILABLE")
        for entry in index
        if entry["name"] == name and version in ("", entry.get("version", ""))
    }
    if not versions:
        raise PyTritonClientModelUnavailableError(
            f"{server} has no model {name!r}{f' version {version}' if version else ''}."
        )
    return ModelState.READY if ModelState.READY in versions.values() else versions[max(versions)]


def wait_for_server_ready(
    client: InferenceServerClient, timeout_s: float | None = None, headers: Mapping[str, Any] | None = None
) -> None:
    """Waits until a server is ready.

    Args:
        client: tritonclient's own client.
        timeout_s: How long to wait, in seconds; 300 by default.
        headers: Headers of HTTP, or gRPC's metadata.

    Raises:
        PyTritonClientTimeoutError: It was not ready in time.
    """
    _wait(client, None, timeout_s, headers)


def wait_for_model_ready(
    client: InferenceServerClient,
    model_name: str,
    model_version: str | None = None,
    timeout_s: float | None = None,
    headers: Mapping[str, Any] | None = None,
) -> None:
    """Waits until a model is ready.

    Args:
        client: tritonclient's own client.
        model_name: The model's name.
        model_version: Its version; any by default.
        timeout_s: How long to wait, in seconds; 300 by default.
        headers: Headers of HTTP, or gRPC's metadata.

    Raises:
        PyTritonClientTimeoutError: The server was not ready in time.
        PyTritonClientModelNotReadyError: The server was ready, but the model was not, or failed to load.
    """
    _wait(client, (model_name, version_of(model_version)), timeout_s, headers)


def _wait(
    client: InferenceServerClient,
    model: tuple[str, str] | None,
    timeout_s: float | None,
    headers: Mapping[str, Any] | None,
) -> None:
    timeout_s = DEFAULT_INIT_TIMEOUT_S if timeout_s is None else check_timeout("timeout_s", timeout_s)
    run(wait_until_ready(ServerSet([_server_of(client, headers)]), model, timeout_s, time.sleep))


def is_over_grpc(client: object) -> bool:
    """Returns whether one of tritonclient's own clients uses gRPC."""
    return type(client).__module__.startswith("tritonclient.grpc")


def _server_of(client: Any, headers: Mapping[str, Any] | None) -> Server:
    if not hasattr(client, "get_model_repository_index"):
        raise PyTritonClientValueError(
            f"client is {client!r}; give one of tritonclient's own clients, such as that of create_client_from_url."
        )
    over_grpc = is_over_grpc(client)
    url = _url_of(client, "grpc" if over_grpc else "http")
    transport = given_grpc.GivenGrpcTransport(url, client) if over_grpc else GivenHttpTransport(url, client)
    return Server(transport, {name: str(value) for name, value in (headers or {}).items()})


def _url_of(client: Any, scheme: str) -> TritonUrl:
    """Returns the URL of a client's server, for messages; tritonclient hides it."""
    with contextlib.suppress(AttributeError, PyTritonClientInvalidUrlError):
        if scheme == "grpc":
            return TritonUrl.from_url(f"grpc://{client._channel._channel.target().decode().rpartition('/')[2]}")
        return TritonUrl(scheme, client._parsed_url.host, client._parsed_url.port)
    return TritonUrl(scheme, "unknown", 0)
