"""Controls a running server: readiness, loading and unloading of models."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pytriton.constants import DEFAULT_GRPC_PORT, DEFAULT_HTTP_PORT, TRITON_ACCESS_HEADER
from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError
from pytriton.server.config import TritonConfig
from pytriton.server.ports import reachable
from pytriton.server.security import AccessControl
from pytriton.server.version import ServerVersion

ALL_MODELS = "*"
"""Passed to `ServerControl.unload` to unload all models at once, of a server that refuses requests."""

_TIMEOUT_S = 5.0


class ServerControl(Protocol):
    """The controller's interface to the server, over HTTP or gRPC."""

    def is_ready(self) -> bool:
        """Returns whether the server reports that it is ready."""

    def is_live(self) -> bool:
        """Returns whether the server responds and accepts requests; its models may not be ready yet."""

    def load(self, model: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        """Loads a model, or loads it again.

        Args:
            model: Its name.
            config: Its configuration as JSON, instead of the one in the repository.
            files: Contents by path within its folder, instead of those in the repository.

        Raises:
            PyTritonRuntimeError: The server cannot.
        """

    def unload(self, model: str, timeout_s: float | None = None) -> None:
        """Starts to unload a model, once the server has loaded it.

        Args:
            model: Its name, or `ALL_MODELS`, which leaves them as they are if any of them has requests.
            timeout_s: How long to wait for the server, which may be busy loading it; None for no limit.

        Raises:
            PyTritonRuntimeError: The server cannot, or not in time.
        """

    def model_config(self, model: str, version: int | None = None) -> Mapping[str, Any]:
        """Returns a model's configuration as the server reports it, for `TritonModelConfig.from_dict`.

        Raises:
            PyTritonRuntimeError: The server does not have the model, or restricts the request.
            OSError: The server does not respond.
        """

    def statistics(self, model: str | None = None, version: int | None = None) -> Mapping[str, Any]:
        """Returns the statistics of a model, or of all; raises as `model_config` does."""

    def is_loaded(self, model: str) -> bool:
        """Returns whether a model accepts requests."""

    def states(self) -> dict[tuple[str, int], str] | None:
        """Returns the state of each model version that the server knows; None if it does not respond."""

    def version(self) -> ServerVersion | None:
        """Returns the server's version; None if it is unknown."""


class HttpControl:
    """Speaks HTTP, through the standard library: a client library takes longer to import than the server to start."""

    def __init__(self, host: str, port: int, headers: Mapping[str, str]) -> None:
        """Stores the address; ``headers`` open the server's restricted endpoints."""
        self._host = host
        self._port = port
        self._headers = dict(headers)

    def is_ready(self) -> bool:
        """See `ServerControl`."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self._request("GET", "/v2/health/ready", _TIMEOUT_S)[0] == http.HTTPStatus.OK
        return False

    def is_live(self) -> bool:
        """See `ServerControl`."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self._request("GET", "/v2/health/live", _TIMEOUT_S)[0] == http.HTTPStatus.OK
        return False

    def load(self, model: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        """See `ServerControl`."""
        body = b""
        if config is not None:
            parameters = {"config": config}
            for name, content in (files or {}).items():
                parameters[f"file:{name}"] = base64.b64encode(content).decode()
            body = json.dumps({"parameters": parameters}).encode()
        self._post(f"/v2/repository/models/{urllib.parse.quote(model, safe='')}/load", body)

    def unload(self, model: str, timeout_s: float | None = None) -> None:
        """See `ServerControl`."""
        path = urllib.parse.quote(model, safe=ALL_MODELS)
        self._post(f"/v2/repository/models/{path}/unload", timeout_s=timeout_s)

    def states(self) -> dict[tuple[str, int], str] | None:
        """See `ServerControl`."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, body = self._request("POST", "/v2/repository/index", _TIMEOUT_S, b"")
            if status == http.HTTPStatus.OK:
                return {
                    (entry["name"], int(entry["version"])): _state(entry.get("state"), entry.get("reason"))
                    for entry in json.loads(body)
                    if entry.get("version")
                }
        return None

    def version(self) -> ServerVersion | None:
        """See `ServerControl`."""
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError, KeyError):
            status, body = self._request("GET", "/v2", _TIMEOUT_S)
            if status == http.HTTPStatus.OK:
                return ServerVersion.parse(json.loads(body)["version"])
        return None

    def model_config(self, model: str, version: int | None = None) -> Mapping[str, Any]:
        """See `ServerControl`."""
        return self._report(f"{_path(model, version)}/config")

    def statistics(self, model: str | None = None, version: int | None = None) -> Mapping[str, Any]:
        """See `ServerControl`."""
        return self._report("/v2/models/stats" if model is None else f"{_path(model, version)}/stats")

    def _report(self, path: str) -> Mapping[str, Any]:
        status, body = self._request("GET", path, _TIMEOUT_S)
        if status != http.HTTPStatus.OK:
            raise PyTritonRuntimeError(_error_text(body))
        report: Mapping[str, Any] = json.loads(body)
        return report

    def is_loaded(self, model: str) -> bool:
        """See `ServerControl`."""
        path = f"/v2/models/{urllib.parse.quote(model, safe='')}/ready"
        return self._request("GET", path, _TIMEOUT_S)[0] == http.HTTPStatus.OK

    def _post(self, path: str, body: bytes = b"", timeout_s: float | None = None) -> None:
        try:
            # Loading takes as long as the model's warm-up does.
            status, response = self._request("POST", path, timeout_s, body)
        except (OSError, http.client.HTTPException) as error:
            address = f"{self._host}:{self._port}"
            raise PyTritonRuntimeError(f"The server at {address} does not respond: {error!r}") from error
        if status != http.HTTPStatus.OK:
            raise PyTritonRuntimeError(_error_text(response))

    def _request(self, method: str, path: str, timeout_s: float | None, body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            connection.request(method, path, body, self._headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


class GrpcControl:
    """Speaks gRPC, where HTTP is switched off."""

    def __init__(self, host: str, port: int, headers: Mapping[str, str]) -> None:
        """Stores the address; ``headers`` open the server's restricted endpoints."""
        # Imported here because it takes longer than everything else at start-up.
        from tritonclient import grpc, utils

        url = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._client: Any = grpc.InferenceServerClient(url)
        self._error: type[Exception] = utils.InferenceServerException
        # Triton's front end for gRPC looks for restricted keys under this prefix.
        self._headers = {f"triton-grpc-protocol-{name}": value for name, value in headers.items()}

    def is_ready(self) -> bool:
        """See `ServerControl`."""
        with contextlib.suppress(self._error):
            return bool(self._client.is_server_ready(headers=self._headers, client_timeout=_TIMEOUT_S))
        return False

    def is_live(self) -> bool:
        """See `ServerControl`."""
        with contextlib.suppress(self._error):
            return bool(self._client.is_server_live(headers=self._headers, client_timeout=_TIMEOUT_S))
        return False

    def load(self, model: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        """See `ServerControl`."""
        uploads = {f"file:{name}": content for name, content in (files or {}).items()} or None
        try:
            self._client.load_model(model, headers=self._headers, config=config, files=uploads)
        except self._error as error:
            raise PyTritonRuntimeError(_with_remedy(str(error))) from error

    def unload(self, model: str, timeout_s: float | None = None) -> None:
        """See `ServerControl`."""
        try:
            self._client.unload_model(model, headers=self._headers, client_timeout=timeout_s)
        except self._error as error:
            raise PyTritonRuntimeError(_with_remedy(str(error))) from error

    def states(self) -> dict[tuple[str, int], str] | None:
        """See `ServerControl`."""
        with contextlib.suppress(self._error):
            index = self._client.get_model_repository_index(headers=self._headers).models
            return {
                (entry.name, int(entry.version)): _state(entry.state, entry.reason) for entry in index if entry.version
            }
        return None

    def version(self) -> ServerVersion | None:
        """See `ServerControl`."""
        with contextlib.suppress(self._error, ValueError):
            metadata = self._client.get_server_metadata(headers=self._headers, client_timeout=_TIMEOUT_S)
            return ServerVersion.parse(metadata.version)
        return None

    def model_config(self, model: str, version: int | None = None) -> Mapping[str, Any]:
        """See `ServerControl`."""
        config: Mapping[str, Any] = self._report(self._client.get_model_config, model, version)["config"]
        return config

    def statistics(self, model: str | None = None, version: int | None = None) -> Mapping[str, Any]:
        """See `ServerControl`."""
        return self._report(self._client.get_inference_statistics, model or "", version)

    def _report(self, method: Callable[..., Any], model: str, version: int | None) -> Mapping[str, Any]:
        at = "" if version is None else str(version)
        try:
            report: Mapping[str, Any] = method(
                model, at, headers=self._headers, as_json=True, client_timeout=_TIMEOUT_S
            )
        except self._error as error:
            raise PyTritonRuntimeError(str(error)) from error
        return report

    def is_loaded(self, model: str) -> bool:
        """See `ServerControl`."""
        try:
            return bool(self._client.is_model_ready(model, headers=self._headers))
        except self._error as error:
            # A current server responds so if there is no such model; an older one responds that it is not ready.
            if "NOT_FOUND" in str(error):
                return False
            raise


def control_of(config: TritonConfig, access: AccessControl) -> ServerControl:
    """Returns the control of a server that was started with ``config``, whose ports are filled in."""
    if config.allow_http is not False:
        assert config.http_port is not None
        return HttpControl(reachable(config.http_address), config.http_port, access.http_headers())
    assert config.grpc_port is not None
    return GrpcControl(reachable(config.grpc_address), config.grpc_port, access.grpc_headers())


def control_of_url(url: str, access_token: str | None = None) -> ServerControl:
    """Returns the control of the server at a URL.

    Args:
        url: ``host`` or ``host:port``, optionally after ``http://`` or ``grpc://``.
        access_token: The server's token, for the endpoints that require it.

    Raises:
        PyTritonBadParameterError: The URL is none of these.
    """
    kind, host, port = _parts(url)
    return kind(host, port, {TRITON_ACCESS_HEADER: access_token} if access_token else {})


def address_of_url(url: str) -> tuple[str, int]:
    """Returns host and port of the server at a URL.

    Raises:
        PyTritonBadParameterError: It is invalid, see `control_of_url`.
    """
    _, host, port = _parts(url)
    return host, port


def check_url(url: str) -> None:
    """Checks a URL for `control_of_url`.

    Raises:
        PyTritonBadParameterError: It is invalid.
    """
    _parts(url)


def _parts(url: str) -> tuple[type[HttpControl] | type[GrpcControl], str, int]:
    if not isinstance(url, str):
        raise PyTritonBadParameterError(f"url is {url!r}; use text: host, host:port, http://... or grpc://...")
    parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
    kinds: dict[str, tuple[type[HttpControl] | type[GrpcControl], int]] = {
        "http": (HttpControl, DEFAULT_HTTP_PORT),
        "grpc": (GrpcControl, DEFAULT_GRPC_PORT),
    }
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in kinds or not parts.hostname or port == -1 or parts.path not in ("", "/"):
        raise PyTritonBadParameterError(
            f"{url!r} is not a valid URL of a server; use host, host:port, http://... or grpc://..."
        )
    kind, default_port = kinds[parts.scheme]
    return kind, parts.hostname, port or default_port


def _path(model: str, version: int | None) -> str:
    at = "" if version is None else f"/versions/{version}"
    return f"/v2/models/{urllib.parse.quote(model, safe='')}{at}"


def _state(state: str | None, reason: str | None) -> str:
    return ": ".join(filter(None, [state, reason]))


def _error_text(body: bytes) -> str:
    text = body.decode(errors="replace")
    with contextlib.suppress(ValueError, AttributeError):
        text = str(json.loads(body).get("error"))
    return _with_remedy(text)


def _with_remedy(text: str) -> str:
    if TRITON_ACCESS_HEADER not in text:
        return text
    return f"{text.rstrip('.')}: give the token, Triton.get_access_token() of its owner, as access_token."
