"""Requests of Triton's gRPC API, and the reading of its responses; neither sends anything."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2

from pytriton.client.core.grpc import fields
from pytriton.client.core.grpc.results import read_response
from pytriton.client.core.parameters import check_parameters
from pytriton.client.core.tensors import Content, InferInput, InferRequestedOutput
from pytriton.client.exceptions import PyTritonClientValueError

MAX_MESSAGE_BYTES = 2**31 - 1

_SERVICE = "/inference.GRPCInferenceService/"
STREAM = f"{_SERVICE}ModelStreamInfer"
"""The path of the method for streams, whose requests are the same as those of ``infer``."""

_RAW_INPUT_CONTENTS = fields.tag_of(service_pb2.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER)


class Call(NamedTuple):
    """A request, and the function that reads its response.

    Attributes:
        path: The path of the method.
        message: The encoded request.
        read: Converts the encoded response to the result for the caller.
    """

    path: str
    message: bytes
    read: Callable[[bytes], Any]


def call_of(method: str, *args: Any, **kwargs: Any) -> Call:
    """Creates the request of a method of the API, with the same name and arguments as in tritonclient.

    Raises:
        PyTritonClientValueError: The arguments cannot be sent.
    """
    try:
        return _METHODS[method](*args, **kwargs)
    except PyTritonClientValueError:
        raise
    except (TypeError, ValueError) as error:  # of Protocol Buffers' library
        raise PyTritonClientValueError(f"The request cannot be sent over gRPC: {error}.") from None


def _infer(
    model: str,
    inputs: Sequence[InferInput],
    version: str = "",
    outputs: Sequence[InferRequestedOutput] | None = None,
    *,
    request_id: str = "",
    sequence_id: int | str = 0,
    sequence_start: bool = False,
    sequence_end: bool = False,
    priority: int = 0,
    timeout: int | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> Call:
    """Creates an inference request.

    Protocol Buffers' library would copy the contents of tensors twice, so they are appended to its output: fields of a
    message may be encoded separately, in any order. The part with the model and its inputs is cached, because a
    client's requests are similar.
    """
    described = tuple([(tensor.name, tensor.datatype, tensor.shape, tensor.region) for tensor in inputs])
    parts: list[Content] = [_encode_inputs(model, version, described)]
    if outputs or request_id or sequence_id or priority or timeout is not None or parameters:
        options = service_pb2.ModelInferRequest(id=request_id)
        for output in outputs or ():
            _set_parameters(options.outputs.add(name=output.name).parameters, output.region)
        if sequence_id:
            sequence = ("sequence_id", sequence_id), ("sequence_start", sequence_start), ("sequence_end", sequence_end)
            _set_parameters(options.parameters, sequence)
        if priority:
            options.parameters["priority"].uint64_param = priority
        if timeout is not None:
            options.parameters["timeout"].int64_param = timeout
        if parameters:
            check_parameters(parameters)
            _set_parameters(options.parameters, parameters.items())
        parts.append(options.SerializeToString())
    for tensor in inputs:
        if tensor.content is not None:
            parts += (_RAW_INPUT_CONTENTS, fields.encode_number(len(tensor.content)), tensor.content)
    size = sum(map(len, parts))
    if size > MAX_MESSAGE_BYTES:
        raise PyTritonClientValueError(
            f"The request has {size:,} bytes, and messages of gRPC have at most {MAX_MESSAGE_BYTES:,}; use HTTP, "
            "shared memory or smaller batches."
        )
    return Call(f"{_SERVICE}ModelInfer", b"".join(parts), read_response)


@functools.lru_cache(maxsize=256)
def _encode_inputs(
    model: str, version: str, inputs: Sequence[tuple[str, str, tuple[int, ...], tuple[tuple[str, Any], ...]]]
) -> bytes:
    message = service_pb2.ModelInferRequest(model_name=model, model_version=version)
    for name, datatype, shape, region in inputs:
        _set_parameters(message.inputs.add(name=name, datatype=datatype, shape=shape).parameters, region)
    encoded: bytes = message.SerializeToString()
    return encoded


def _set_parameters(target: Any, parameters: Iterable[tuple[str, Any]]) -> None:
    for name, value in parameters:
        if isinstance(value, bool):
            target[name].bool_param = value
        elif isinstance(value, int):
            target[name].int64_param = value
        elif isinstance(value, float):
            target[name].double_param = value
        else:
            target[name].string_param = value


def _is_server_ready() -> Call:
    return _call("ServerReady", service_pb2.ServerReadyRequest(), lambda response: response.ready)


def _get_server_metadata() -> Call:
    return _call("ServerMetadata", service_pb2.ServerMetadataRequest(), lambda response: response)


def _is_model_ready(model: str, version: str = "") -> Call:
    request = service_pb2.ModelReadyRequest(name=model, version=version)
    return _call("ModelReady", request, lambda response: response.ready)


def _get_model_config(model: str, version: str = "") -> Call:
    request = service_pb2.ModelConfigRequest(name=model, version=version)
    return _call("ModelConfig", request, lambda response: _json_of(response)["config"])


def _get_inference_statistics(model: str, version: str = "") -> Call:
    return _call("ModelStatistics", service_pb2.ModelStatisticsRequest(name=model, version=version), _json_of)


def _get_model_repository_index() -> Call:
    request = service_pb2.RepositoryIndexRequest()
    return _call("RepositoryIndex", request, lambda response: _json_of(response).get("models", []))


def _load_model(model: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> Call:
    request = service_pb2.RepositoryModelLoadRequest(model_name=model)
    if config is not None:
        request.parameters["config"].string_param = config
    for path, content in (files or {}).items():
        request.parameters[path].bytes_param = content
    return _call("RepositoryModelLoad", request)


def _unload_model(model: str) -> Call:
    request = service_pb2.RepositoryModelUnloadRequest(model_name=model)
    request.parameters["unload_dependents"].bool_param = False
    return _call("RepositoryModelUnload", request)


def _register_system_shared_memory(name: str, key: str, byte_size: int) -> Call:
    request = service_pb2.SystemSharedMemoryRegisterRequest(name=name, key=key, byte_size=byte_size)
    return _call("SystemSharedMemoryRegister", request)


def _unregister_system_shared_memory(name: str) -> Call:
    return _call("SystemSharedMemoryUnregister", service_pb2.SystemSharedMemoryUnregisterRequest(name=name))


def _nothing(_response: Any) -> None:
    pass


def _call(method: str, request: Any, read: Callable[[Any], Any] = _nothing) -> Call:
    response_type = getattr(service_pb2, f"{method}Response")
    return Call(_SERVICE + method, request.SerializeToString(), lambda message: read(response_type.FromString(message)))


def _json_of(response: Any) -> Any:
    """Converts a response to its form over HTTP."""
    return MessageToDict(response, preserving_proto_field_name=True)


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
