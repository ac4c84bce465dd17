"""The Open Inference Protocol of KServe and Triton, below ``/v2``: JSON, and tensors as bytes."""

from __future__ import annotations

import hashlib
import http
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pytriton.client.core.inputs import Array, fits
from pytriton.gateway import offload
from pytriton.gateway.access import ApiKey
from pytriton.gateway.config import RESERVED_PARAMETERS, RESERVED_PREFIXES, GatewayConfig
from pytriton.gateway.errors import RequestError
from pytriton.gateway.json_tensors import encode, parse, shown, values_of
from pytriton.gateway.models import Model, Models, Reply
from pytriton.gateway.request import Request
from pytriton.gateway.responses import Send, send_bytes, send_json
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig
from pytriton.proxy.services.messages import InferenceCall
from pytriton.proxy.tensors.bytes_tensor import decode_elements, encode_elements
from pytriton.proxy.wire.encoding import LENGTH_SIZE
from pytriton.proxy.wire.service import SEQUENCE_END, SEQUENCE_START

HEADER_LENGTH = "inference-header-content-length"
"""The header with the size of the JSON that precedes the tensors."""

_EXTENSIONS = ["binary_tensor_data", "sequence", "parameters", "model_configuration", "statistics", "model_repository"]
_BINARY = "application/octet-stream"
_MAX_RANK = 32
_MAX_ELEMENTS = 1 << 40  # elements of a shape: more than any body has
_MAX_PARAMETERS = 1000
_MAX_SEQUENCE_ID = 128  # characters
_MAX_ID = 1000  # characters of a request's id


class _Wanted(NamedTuple):
    """The outputs that a client requests (None for all), and those that it requests as bytes."""

    names: list[str] | None
    binary: dict[str, bool]
    binary_by_default: bool
    id: str = ""


class _Response(NamedTuple):
    body: bytes
    header: int | None  # the size of the JSON, if tensors follow it as bytes


async def server_metadata(models: Models, send: Send) -> None:
    """Sends the server's metadata."""
    await send_json(send, {"name": "triton", "version": await models.upstream.version(), "extensions": _EXTENSIONS})


async def model_metadata(models: Models, model: Model, send: Send) -> None:
    """Sends a model's metadata."""
    config = model.config
    versions = [str(version) for name, version in await models.names() if name == config.model_name]
    batch = [-1] if config.batching else []
    await send_json(
        send,
        {
            "name": config.model_name,
            "versions": versions,
            "platform": config.backend,
            "inputs": [_metadata(spec, batch) for spec in config.inputs],
            "outputs": [_metadata(spec, batch) for spec in config.outputs],
        },
    )


async def model_readiness(models: Models, name: str, version: str | None, send: Send) -> None:
    """Responds with status 200 if a model is ready, else 400."""
    ready = await models.names()
    found = any(each == name and version in (None, str(number)) for each, number in ready)
    await send_bytes(send, b"", "application/json", 200 if found else 400)


async def model_config(models: Models, name: str, version: str | None, send: Send) -> None:
    """Sends a model's configuration as Triton reports it."""
    await send_json(send, await models.config(name, version))


async def statistics(models: Models, name: str | None, version: str | None, send: Send, key: ApiKey | None) -> None:
    """Sends Triton's statistics of a model, or of all that an API key may use."""
    found = dict(await models.statistics(name, version))
    found["model_stats"] = [each for each in found.get("model_stats", []) if key is None or key.may_use(each["name"])]
    await send_json(send, found)


async def index(models: Models, send: Send, key: ApiKey | None) -> None:
    """Sends the list of models that are ready and that an API key may use."""
    ready = [
        {"name": name, "version": str(version), "state": "READY"}
        for name, version in await models.names()
        if key is None or key.may_use(name)
    ]
    await send_json(send, ready)


async def infer(model: Model, request: Request, send: Send, config: GatewayConfig, key: ApiKey | None) -> None:
    """Responds to an inference request.

    Args:
        model: The model.
        request: The request.
        send: The ASGI callable that sends messages.
        config: The limits.
        key: The API key, which has sequences of its own.

    Raises:
        RequestError: It is refused, or fails.
    """
    body = await request.body()
    call, wanted = await offload.run(len(body), _call, model, request, body, config, key)
    reply = await model.infer(call)
    response = await offload.run(offload.size_of(reply), _response, reply, model.config, wanted)
    headers = None if response.header is None else {HEADER_LENGTH: str(response.header)}
    await send_bytes(send, response.body, "application/json" if headers is None else _BINARY, headers=headers)


def _call(
    model: Model, request: Request, body: bytes, config: GatewayConfig, key: ApiKey | None
) -> tuple[InferenceCall, _Wanted]:
    message, tail = _parts(body, request)
    model_config = model.config
    if model_config.decoupled:
        name = model_config.model_name
        raise _bad(f"Model {name!r} sends streams of responses: send the request to /v1/models/{name}.")
    given = _list(message, "inputs", required=True)
    arrays = _arrays(model_config, given, tail, config.max_samples)
    wanted = _wanted(model_config, message)
    request_id = _text(message.get("id", ""), "id")
    if len(request_id) > _MAX_ID:
        raise _bad(f"The id has {len(request_id)} characters, but the limit is {_MAX_ID}.")
    if "\0" in request_id:
        raise _bad("The id has a NUL character, which cannot be sent.")
    call = model.call(arrays, request)
    call.request_id = request_id or request.id
    call.outputs = wanted.names
    _add_parameters(call, message.get("parameters", {}), config)
    if key is not None and call.correlation_id:
        call.correlation_id = own_sequence(call.correlation_id, key)
    return call, wanted._replace(id=request_id)


def _parts(body: bytes, request: Request) -> tuple[dict[str, Any], memoryview]:
    length = request.header(HEADER_LENGTH)
    if not length:
        header, tail = body, memoryview(b"")
    else:
        if not (length.isascii() and length.isdecimal() and len(length) < 18 and int(length) <= len(body)):
            raise _bad(f"Header {HEADER_LENGTH!r} is {length[:20]!r}, but the body has {len(body)} bytes.")
        header, tail = body[: int(length)], memoryview(body)[int(length) :]
    message = parse(header)
    if not isinstance(message, dict):
        raise _bad("The request is not an object.")
    return message, tail


def _arrays(
    config: TritonModelConfig, given: list[dict[str, Any]], tail: memoryview, max_samples: int
) -> dict[str, Array]:
    known = {spec.name: spec for spec in config.inputs}
    arrays: dict[str, Array] = {}
    for each in given:
        name = _text(each.get("name"), "name of an input")
        spec = known.get(name)
        if spec is None:
            has = ", ".join(map(str, config.inputs))
            raise _bad(f"Model {config.model_name!r} has no input {name[:100]!r}; it has {has}.")
        if name in arrays:
            raise _bad(f"Input {name!r} is given twice.")
        shape = _shape(config, spec, each, max_samples)
        size = _object(each.get("parameters", {}), "parameters").get("binary_data_size")
        if size is None:
            arrays[name] = _from_json(spec, shape, each.get("data"))
        else:
            if type(size) is not int or not 0 <= size <= len(tail):
                raise _bad(f"binary_data_size of input {name!r} is {shown(size)}, but {len(tail)} bytes are left.")
            arrays[name] = _from_bytes(spec, shape, tail[:size])
            tail = tail[size:]
    if len(tail):
        raise _bad(f"{len(tail)} bytes at the end of the body belong to no input.")
    missing = [str(spec) for spec in config.inputs if not spec.optional and spec.name not in arrays]
    if missing:
        raise _bad(f"Model {config.model_name!r} also needs {', '.join(missing)}.")
    if config.batching:
        rows = {array.shape[0] for array in arrays.values()}
        if len(rows) > 1:
            raise _bad(f"The inputs have batches of different sizes: {sorted(rows)}.")
    return arrays


def _shape(config: TritonModelConfig, spec: TensorSpec, given: Mapping[str, Any], max_samples: int) -> tuple[int, ...]:
    shape, datatype = given.get("shape"), given.get("datatype")
    wanted = (-1, *spec.shape) if config.batching else tuple(spec.shape)
    if datatype != spec.datatype.name:
        raise _bad(f"Input {spec.name!r} is {spec.datatype.name}, but the request says {shown(datatype)}.")
    if not isinstance(shape, list) or len(shape) > _MAX_RANK or not all(type(n) is int and n >= 0 for n in shape):
        raise _bad(f"The shape of input {spec.name!r} is {shown(shape)}: give a list of numbers.")
    if math.prod(max(n, 1) for n in shape) >= _MAX_ELEMENTS:  # NumPy also multiplies the sizes of empty arrays
        raise _bad(f"The shape of input {spec.name!r} is {shown(shape)}, which is too large.")
    if not fits(tuple(shape), wanted):
        raise _bad(f"The shape of input {spec.name!r} is {shape}, but the model takes {list(wanted)}.")
    if config.batching and not 1 <= shape[0] <= min(config.max_batch_size, max_samples):
        raise _bad(f"The batch has {shape[0]} samples; the model takes 1 to {config.max_batch_size}.")
    return tuple(shape)


def _from_json(spec: TensorSpec, shape: tuple[int, ...], data: Any) -> Array:
    flat: list[Any] = []
    _flatten(data, flat)
    if len(flat) != math.prod(shape):
        raise _bad(f"Input {spec.name!r} of shape {list(shape)} has {len(flat)} values.")
    if spec.datatype.name == "BYTES":
        if not all(isinstance(value, str) for value in flat):
            raise _bad(f"Input {spec.name!r} is BYTES: give strings.")
        return _objects([value.encode() for value in flat], shape)
    kind = spec.numpy_dtype.kind
    allowed: tuple[type, ...] = {"b": (bool,), "i": (int,), "u": (int,)}.get(kind, (int, float))
    for value in flat:
        if type(value) not in allowed and not (kind == "b" and value in (0, 1)):
            raise _bad(f"Input {spec.name!r} is {spec.datatype.name}, but has the value {shown(value)}.")
    try:
        with np.errstate(over="ignore"):
            return np.array(flat, spec.numpy_dtype).reshape(shape)
    except (OverflowError, ValueError, TypeError) as error:
        raise _bad(f"Input {spec.name!r} is {spec.datatype.name}: {error}.") from error


def _flatten(data: Any, flat: list[Any]) -> None:
    if not isinstance(data, list):
        raise _bad(f"The data of an input is {shown(data)}: give a list.")
    for each in data:
        if isinstance(each, list):
            _flatten(each, flat)
        else:
            flat.append(each)


def _from_bytes(spec: TensorSpec, shape: tuple[int, ...], data: memoryview) -> Array:
    count = math.prod(shape)
    if spec.datatype.name != "BYTES":
        if len(data) != count * spec.numpy_dtype.itemsize:
            raise _bad(f"Input {spec.name!r} of shape {list(shape)} has {len(data)} bytes.")
        return np.frombuffer(data, spec.numpy_dtype).reshape(shape)
    if len(data) < count * LENGTH_SIZE:
        raise _bad(f"Input {spec.name!r} of shape {list(shape)} has only {len(data)} bytes.")
    try:
        elements = decode_elements(bytes(data))
    except ValueError as error:
        raise _bad(f"Input {spec.name!r}: {error}.") from error
    if len(elements) != count:
        raise _bad(f"Input {spec.name!r} of shape {list(shape)} has {len(elements)} elements.")
    return _objects(elements, shape)


def _objects(elements: list[bytes], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)


def _wanted(config: TritonModelConfig, message: Mapping[str, Any]) -> _Wanted:
    parameters = _object(message.get("parameters", {}), "parameters")
    by_default = parameters.get("binary_data_output") is True
    outputs = _list(message, "outputs")
    if not outputs:
        return _Wanted(None, {}, by_default)
    known = {spec.name for spec in config.outputs}
    binary = {}
    for each in outputs:
        name = _text(each.get("name"), "name of an output")
        if name not in known:
            raise _bad(f"Model {config.model_name!r} has no output {name[:100]!r}; it has {', '.join(sorted(known))}.")
        settings = _object(each.get("parameters", {}), "parameters")
        if unknown := set(settings) - {"binary_data"}:
            raise _bad(f"Parameter {sorted(unknown)[0][:50]!r} of output {name!r} is not supported by the gateway.")
        binary[name] = settings.get("binary_data", by_default) is True
    return _Wanted(list(binary), binary, by_default)


def _add_parameters(call: InferenceCall, given: Any, config: GatewayConfig) -> None:
    parameters = _object(given, "parameters")
    if len(parameters) > _MAX_PARAMETERS:
        raise _bad(f"The request has {len(parameters)} parameters, but the limit is {_MAX_PARAMETERS}.")
    own = {name: value for name, value in parameters.items() if name not in RESERVED_PARAMETERS}
    for name, value in own.items():
        if not name.isprintable() or (isinstance(value, str) and "\0" in value):  # Triton would end it at a NUL
            raise _bad(f"Parameter {shown(name)} has characters that cannot be sent.")
        if name.lower() in config.forwarded_names:
            raise _bad(f"Parameter {name!r} is taken from the header of that name.")
        can_be_sent = isinstance(value, str | float) or (isinstance(value, int) and -(1 << 63) <= value < 1 << 63)
        if not can_be_sent or name.startswith(RESERVED_PREFIXES):
            raise _bad(f"Parameter {name[:50]!r} has a value that cannot be sent, or is reserved.")
    call.parameters = {**own, **call.parameters}
    sequence = parameters.get("sequence_id", 0)
    if not _is_sequence_id(sequence):
        raise _bad(
            f"sequence_id is {shown(sequence)}: give a number from 0 to 2^64 - 1, or a string of up to "
            f"{_MAX_SEQUENCE_ID} characters."
        )
    call.correlation_id = sequence
    call.flags = (SEQUENCE_START if parameters.get("sequence_start") is True else 0) | (
        SEQUENCE_END if parameters.get("sequence_end") is True else 0
    )
    for name, limit in (("priority", 1 << 32), ("timeout", 1 << 62)):
        value = parameters.get(name, 0)
        if type(value) is not int or not 0 <= value < limit:
            raise _bad(f"{name} is {shown(value)}: give a number from 0 to {limit - 1}.")
    call.priority, call.timeout_us = parameters.get("priority", 0), parameters.get("timeout", 0)


def _response(reply: Reply, config: TritonModelConfig, wanted: _Wanted) -> _Response:
    datatypes = {spec.name: spec.datatype.name for spec in config.outputs}
    outputs, tail = [], []
    for name, array in reply.outputs.items():
        output: dict[str, Any] = {"name": name, "datatype": datatypes[name], "shape": list(array.shape)}
        if wanted.binary.get(name, wanted.binary_by_default):
            data = encode_elements(array.ravel().tolist()) if array.dtype == object else array.tobytes()
            output["parameters"] = {"binary_data_size": len(data)}
            tail.append(data)
        else:
            if array.dtype == object and not all(map(_is_text, array.ravel().tolist())):
                raise RequestError(http.HTTPStatus.NOT_ACCEPTABLE, f"Output {name!r} is not text: request it as bytes.")
            output["data"] = values_of(array.reshape(-1))
        outputs.append(output)
    message: dict[str, Any] = {"model_name": reply.model, "model_version": str(reply.version), "outputs": outputs}
    if wanted.id:
        message["id"] = wanted.id
    if reply.parameters:
        message["parameters"] = reply.parameters
    header = encode(message)
    return _Response(b"".join([header, *tail]), len(header)) if tail else _Response(header, None)


def _is_text(element: Any) -> bool:
    if isinstance(element, bytes):
        try:
            element.decode()
        except UnicodeDecodeError:
            return False
    return True


def _metadata(spec: TensorSpec, batch: list[int]) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype.name, "shape": [*batch, *spec.shape]}


def _list(message: Mapping[str, Any], name: str, *, required: bool = False) -> list[dict[str, Any]]:
    if required and name not in message:
        advice = 'send {"inputs": [{"name": ...}]}, or plain values such as {"x": 1} to /v1/models/<model>'
        raise _bad(f"{name!r} of the request is missing: {advice}.")
    given = message.get(name, [])
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise _bad(f"{name!r} of the request is not a list of objects.")
    return given


def _object(given: Any, name: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise _bad(f"{name!r} is not an object.")
    return given


def _text(given: Any, name: str) -> str:
    if not isinstance(given, str):
        raise _bad(f"The {name} is {shown(given)}: give a string.")
    return given


def own_sequence(given: int | str, key: ApiKey) -> int | str:
    """Returns a sequence id of the same type that no other API key can have."""
    digest = hashlib.sha256(f"{key.hash} {given!r}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1 or 1 if isinstance(given, int) else digest.hex()


def _is_sequence_id(given: Any) -> bool:
    if isinstance(given, str):
        return len(given) <= _MAX_SEQUENCE_ID and "\0" not in given
    return type(given) is int and 0 <= given < 1 << 64


def _bad(message: str) -> RequestError:
    return RequestError(http.HTTPStatus.BAD_REQUEST, message)
