"""The OpenAPI 3.1 document of the models that are served."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pytriton._environment import installed_version
from pytriton.gateway import form, npy
from pytriton.gateway.access import ApiKey
from pytriton.gateway.errors import RequestError
from pytriton.gateway.models import Models
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig

_VARIABLE_SIZE = 3  # of a dimension of any size, in an example
_MAX_EXAMPLE = 64  # elements
_ERROR = {"$ref": "#/components/schemas/Error"}
_BINARY = {"type": "string", "format": "binary"}
_BASE64_PATTERN = "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_BASE64 = {
    "type": "object",
    "properties": {"b64": {"type": "string", "contentEncoding": "base64", "pattern": f"^{_BASE64_PATTERN}$"}},
    "required": ["b64"],
    "additionalProperties": False,
}
_ERRORS = {
    400: "The body cannot be parsed.",
    401: "There is no valid API key.",
    403: "The API key may not use this model.",
    404: "The model is not ready.",
    406: "The response is not available in a type that the client accepts.",
    409: "The model reports that the request conflicts with something.",
    413: "The body is too large, or has too many samples.",
    415: "The body has a type or an encoding that is not supported.",
    422: "An input does not fit the model: the error names the field.",
    429: "The API key has sent too many requests.",
    500: "The model raised an exception.",
    502: "The server exited before the model responded.",
    503: "Too many requests are in flight, or the server is not running: try again.",
    504: "The model took too long.",
}


async def document(models: Models, key: ApiKey | None, prefix: str, needs_key: bool) -> dict[str, Any]:
    """Returns the document.

    Args:
        models: The models.
        key: The client's API key; the document lists the models that it may use.
        prefix: The path below which the application is mounted.
        needs_key: Whether requests need an API key.
    """
    paths: dict[str, Any] = {"/v1/models": {"get": _listing()}}
    for name in dict.fromkeys(name for name, _ in await models.names()):
        if key is not None and not key.may_use(name):
            continue
        try:
            config = (await models.find(name)).config
        except RequestError:  # it has been unloaded meanwhile
            continue
        paths[f"/v1/models/{name}"] = {
            "post": _inference(config, models.upstream.description(name)),
            "get": _description(name),
        }
    components: dict[str, Any] = {"schemas": {"Error": _error_schema()}}
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Models", "version": installed_version(), "description": "Models served by PyTriton."},
        "servers": [{"url": prefix or "/"}],
        "paths": paths,
        "components": components,
    }
    if needs_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"key": []}]
    return made


def _inference(config: TritonModelConfig, description: str) -> dict[str, Any]:
    name = config.model_name
    summary = description.partition("\n")[0] or f"Sends a request to model {name}."
    request: dict[str, Any] = {
        "application/json": {
            "schema": _samples(config.inputs, config, optional=True),
            "example": {spec.name: _example(spec) for spec in config.inputs if not spec.optional},
        }
    }
    if len(config.inputs) == 1 and config.inputs[0].datatype.name != "BYTES":
        request[npy.MEDIA_TYPE] = {"schema": _BINARY}
    if any(spec.datatype.name == "BYTES" for spec in config.inputs):
        numbers = [spec.name for spec in config.inputs if spec.datatype.name != "BYTES"]
        encoding = {name: {"contentType": "application/json"} for name in numbers}
        request[form.MEDIA_TYPE] = {"schema": _form(config.inputs), "encoding": encoding}
    if config.decoupled:
        outcome = f"Lines, or events, of JSON: {', '.join(_object(config.outputs)['properties'])}."
        content: dict[str, Any] = {
            "application/x-ndjson": {"schema": {"type": "string"}},
            "text/event-stream": {"schema": {"type": "string"}},
        }
    else:
        outcome = "The outputs."
        content = {"application/json": {"schema": _samples(config.outputs, config)}}
        files = [spec.media_type for spec in config.outputs if spec.media_type]
        content |= {kind: {"schema": _BINARY} for kind in [npy.MEDIA_TYPE, *files]}
    return {
        "operationId": f"infer_{name}",
        "summary": summary,
        "description": description,
        "tags": [name],
        "requestBody": {"required": True, "content": request},
        "responses": {"200": {"description": outcome, "content": content}} | _errors(),
    }


def _description(name: str) -> dict[str, Any]:
    return {
        "operationId": f"describe_{name}",
        "summary": f"Describes model {name}.",
        "tags": [name],
        "responses": {"200": _json("The description.", {"type": "object"})} | _errors(401, 403, 404, 429, 503),
    }


def _listing() -> dict[str, Any]:
    return {
        "operationId": "list_models",
        "summary": "Lists the models that are ready.",
        "responses": {"200": _json("The models.", {"type": "object"})} | _errors(401, 429, 503),
    }


def _samples(tensors: Sequence[TensorSpec], config: TritonModelConfig, *, optional: bool = False) -> dict[str, Any]:
    sample = _object(tensors, optional=optional)
    kinds = [sample, {"type": "array", "items": sample}]
    if config.batching:
        kinds.append(_object(tensors, batch=True, optional=optional))
    return {"anyOf": kinds}


def _form(tensors: Sequence[TensorSpec]) -> dict[str, Any]:
    schema = _object(tensors, optional=True)
    for spec in tensors:
        if spec.datatype.name == "BYTES":
            file = _BINARY | {"contentMediaType": spec.media_type}
            schema["properties"][spec.name] = file if spec.media_type else {"type": "string"}
    return schema


def _object(tensors: Sequence[TensorSpec], *, batch: bool = False, optional: bool = False) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            spec.name: _or_null(_tensor(spec, batch=batch))
            if optional and spec.optional
            else _tensor(spec, batch=batch)
            for spec in tensors
        },
        "required": [spec.name for spec in tensors if not (optional and spec.optional)],
        "additionalProperties": False,
    }


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _tensor(spec: TensorSpec, *, batch: bool) -> dict[str, Any]:
    element = _element(spec)
    schema = element
    for size in reversed(spec.shape):
        schema = {"type": "array", "items": schema}
        if size >= 0:
            schema |= {"minItems": size, "maxItems": size}
    if batch:
        return {"type": "array", "minItems": 1, "items": schema}
    title = f"{spec.datatype.name} {list(spec.shape)}"
    if all(size in (-1, 1) for size in spec.shape):  # a single value may replace a list of one
        return {"anyOf": [element, schema], "description": title}
    return schema | {"description": title}


def _element(spec: TensorSpec) -> dict[str, Any]:
    name = spec.datatype.name
    if spec.is_binary:
        text = {"type": "string", "contentEncoding": "base64", "contentMediaType": spec.media_type}
        return {"anyOf": [text | {"pattern": f"^(data:[^,]*,)?{_BASE64_PATTERN}$"}, _BASE64]}
    if name == "BYTES":
        return {"anyOf": [{"type": "string"}, _BASE64]}
    if name == "BOOL":
        return {"type": "boolean"}
    if name.startswith(("INT", "UINT")):
        limits = np.iinfo(spec.numpy_dtype)
        return {"type": "integer", "minimum": int(limits.min), "maximum": int(limits.max)}
    number: dict[str, Any] = {"type": ["number", "null"]}
    if name in ("FP16", "FP32"):
        largest = np.finfo(spec.numpy_dtype).max
        step = float(largest) - float(np.nextafter(largest, largest.dtype.type(0)))
        limit = float(largest) + step / 2  # numbers below it are rounded to the largest
        number |= {"exclusiveMinimum": -limit, "exclusiveMaximum": limit}
    return number


def _example(spec: TensorSpec) -> Any:
    sizes = [_VARIABLE_SIZE if size < 0 else size for size in spec.shape]
    if math.prod(sizes) > _MAX_EXAMPLE:
        return []
    value: Any = {"BYTES": "" if spec.is_binary else "text", "BOOL": True}.get(spec.datatype.name, 1)
    if sizes == [1]:
        return value
    for size in reversed(sizes):
        value = [value] * size
    return value


def _errors(*statuses: int) -> dict[str, Any]:
    return {str(status): _json(_ERRORS[status], _ERROR) for status in statuses or _ERRORS}


def _json(description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _error_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "error": {
                "type": "object",
                "properties": {"message": {"type": "string"}, "field": {"type": "string"}},
                "required": ["message"],
            }
        },
        "required": ["error"],
    }
