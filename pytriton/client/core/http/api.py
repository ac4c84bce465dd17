"""Requests of Triton's HTTP API, and the reading of its responses; neither sends anything."""

from __future__ import annotations

import base64
import functools
import gzip
import http
import json
import urllib.parse
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pytriton.client.core import failures
from pytriton.client.core.http.results import InferResult, json_of
from pytriton.client.core.parameters import check_parameters
from pytriton.client.core.tensors import Content, InferInput, InferRequestedOutput

_HEADER_SIZE = "Inference-Header-Content-Length"
_JSON = {"Content-Type": "application/json"}
_NO_HEADERS: Mapping[str, str] = {}
_DECODERS: Mapping[bytes, Callable[[Content], bytes]] = {b"gzip": gzip.decompress, b"deflate": zlib.decompress}
_NOT_READY = frozenset({400, 403, *range(500, 600)})
"""Statuses of a server that is not ready: Triton's, and those of proxies and the gateway."""
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Response(NamedTuple):
    """A response.

    Attributes:
        status: Its status.
        headers: Its headers, by their names in lower case.
        body: Its body.
        may_be_compressed: Whether the request allowed compression.
    """

    status: int
    headers: Mapping[bytes, bytes]
    body: Content
    may_be_compressed: bool = False

    def to(self, headers: Mapping[str, str]) -> Response:
        """Returns the response to a request with these headers."""
        if b"content-encoding" in self.headers and any(name.lower() == "accept-encoding" for name in headers):
            return self._replace(may_be_compressed=True)
        return self


class Call(NamedTuple):
    """A request, and the function that reads its response.

    Attributes:
        verb: GET or POST.
        path: The path relative to the server's URL.
        headers: Headers that belong to the body.
        parts: The body, in parts.
        read: Converts the response to the result for the caller.
    """

    verb: str
    path: str
    headers: Mapping[str, str]
    parts: Sequence[Content]
    read: Callable[[Response], Any]


class StatusError(Exception):
    """The server responded with an error.

    Args:
        response: Its response.
    """

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


class UnexpectedResponseError(StatusError):
    """The response is not one of Triton's."""


def call_of(method: str, *args: Any, **kwargs: Any) -> Call:
    """Creates the request of a method of the API, with the same name and arguments as in tritonclient."""
    return _METHODS[method](*args, **kwargs)


def _is_server_ready() -> Call:
    def read(response: Response) -> bool:
        if response.status == http.HTTPStatus.OK:
            return True
        if response.status == http.HTTPStatus.BAD_REQUEST and not response.body:
            return False
        # It requires a token, reports that it is not ready, or is another program.
        raise (StatusError if response.status in _NOT_READY else UnexpectedResponseError)(response)

    return Call("GET", "v2/health/ready", _NO_HEADERS, (), read)


def _is_model_ready(model: str, version: str = "") -> Call:
    return Call("GET", f"{_path_of(model, version)}/ready", _NO_HEADERS, (), lambda response: response.status == 200)


def _get_model_config(model: str, version: str = "") -> Call:
    return Call("GET", f"{_path_of(model, version)}/config", _NO_HEADERS, (), _json_of)


def _get_server_metadata() -> Call:
    return Call("GET", "v2", _NO_HEADERS, (), _json_of)


def _get_inference_statistics(model: str, version: str = "") -> Call:
    return Call("GET", f"{_path_of(model, version)}/stats", _NO_HEADERS, (), _json_of)


def _get_model_repository_index() -> Call:
    return Call("POST", "v2/repository/index", _NO_HEADERS, (), _json_of)


def _load_model(model: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> Call:
    parameters = {} if config is None else {"config": config}
    for path, content in (files or {}).items():
        parameters[path] = base64.b64encode(content).decode()
    return _post(f"{_repository_path_of(model)}/load", {"parameters": parameters} if parameters else {})


def _unload_model(model: str) -> Call:
    return _post(f"{_repository_path_of(model)}/unload", {"parameters": {"unload_dependents": False}})


def _register_system_shared_memory(name: str, key: str, byte_size: int) -> Call:
    return _post(f"{_region_path_of(name)}/register", {"key": key, "offset": 0, "byte_size": byte_size})


def _unregister_system_shared_memory(name: str) -> Call:
    return Call("POST", f"{_region_path_of(name)}/unregister", _NO_HEADERS, (), _check)


def _infer(
    model: str,
    inputs: Sequence[InferInput],
    version: str = "",
    outputs: Sequence[InferRequestedOutput] | None = None,
    *,
    request_id: str = "",
    priority: int = 0,
    timeout: int | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> Call:
    message: dict[str, Any] = {"inputs": [_input(tensor) for tensor in inputs]}
    settings: dict[str, Any] = {}
    if request_id:
        message["id"] = request_id
    if priority:
        settings["priority"] = priority
    if timeout is not None:
        settings["timeout"] = timeout
    if outputs:
        message["outputs"] = [_requested_output(output) for output in outputs]
    else:
        settings["binary_data_output"] = True
    if parameters:
        check_parameters(parameters)
        settings.update(parameters)
    if settings:
        message["parameters"] = settings
    head = _encode(message).encode()
    contents = [tensor.content for tensor in inputs if tensor.content is not None]
    headers = _JSON
    if contents:
        headers = {"Content-Type": "application/octet-stream", _HEADER_SIZE: str(len(head))}
    return Call("POST", f"{_path_of(model, version)}/infer", headers, (head, *contents), _result_of)


_METHODS: Mapping[str, Callable[..., Call]] = {
    "get_inference_statistics": _get_inference_statistics,
    "get_model_config": _get_model_config,
    "get_model_repository_index": _get_model_repository_index,
    "get_server_metadata": _get_server_metadata,
    "infer": _infer,
    "is_model_ready": _is_model_ready,
    "is_server_ready": _is_server_ready,
    "load_model": _load_model,
    "register_system_shared_memory": _register_system_shared_memory,
    "unload_model": _unload_model,
    "unregister_system_shared_memory": _unregister_system_shared_memory,
}


def translated(url: str, error: StatusError) -> Exception:
    """Translates an error response.

    Args:
        url: The server's URL.
        error: The error.
    """
    response = error.response
    status = str(response.status)
    text = ""
    try:
        body = bytes(_decoded(response))
        text = body.decode()
        message = json_of(body)["error"] if body else "client received an empty response from the server."
        if not isinstance(error, UnexpectedResponseError):
            return failures.http_failure(url, status, str(message))
    except (ValueError, KeyError, TypeError, OSError, EOFError, zlib.error):  # not the JSON of Triton's errors
        pass
    program, location = (response.headers.get(name, b"").decode("latin-1") for name in (b"server", b"location"))
    return failures.unexpected_response(url, status, text, program, location)


def _post(path: str, message: Mapping[str, Any]) -> Call:
    return Call("POST", path, _JSON, (_encode(message).encode(),), _check)


@functools.lru_cache(maxsize=256)
def _path_of(model: str, version: str) -> str:
    path = f"v2/models/{urllib.parse.quote(model, safe='')}"
    return f"{path}/versions/{version}" if version else path


def _repository_path_of(model: str) -> str:
    return f"v2/repository/models/{urllib.parse.quote(model, safe='')}"


def _region_path_of(name: str) -> str:
    return f"v2/systemsharedmemory/region/{urllib.parse.quote(name)}"


def _input(tensor: InferInput) -> dict[str, Any]:
    parameters = dict(tensor.region) if tensor.content is None else {"binary_data_size": len(tensor.content)}
    return {"name": tensor.name, "shape": tensor.shape, "datatype": tensor.datatype, "parameters": parameters}


def _requested_output(output: InferRequestedOutput) -> dict[str, Any]:
    return {"name": output.name, "parameters": {"binary_data": not output.region, **dict(output.region)}}


def _check(response: Response) -> None:
    if response.status != http.HTTPStatus.OK:
        raise StatusError(response)


def _json_of(response: Response) -> Any:
    _check(response)
    try:
        return json_of(_decoded(response))
    except ValueError:
        raise UnexpectedResponseError(response) from None


def _result_of(response: Response) -> InferResult:
    _check(response)
    size = response.headers.get(b"inference-header-content-length")
    return InferResult(_decoded(response), None if size is None else int(size))


def _decoded(response: Response) -> Content:
    """Returns the body, decompressed if the user's headers have requested compression.

    A body whose compression was not requested is not decompressed: it may take any amount of memory.
    """
    encoding = response.headers.get(b"content-encoding")
    if encoding is None:
        return response.body
    decode = _DECODERS.get(encoding.lower())
    if decode is None:
        return response.body
    if not response.may_be_compressed:
        raise ValueError(f"its body is compressed ({encoding.decode('latin-1')}), which was not requested")
    try:
        return decode(response.body)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"the body is not {encoding.decode('latin-1')}: {error}") from None
