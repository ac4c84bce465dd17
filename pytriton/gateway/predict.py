"""``POST /v1/models/<name>``: JSON or an array in, JSON, an array or a stream out."""

from __future__ import annotations

import asyncio
import functools
import http
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from pytriton.client.core.chunking import joined, send_several
from pytriton.client.core.inputs import Array
from pytriton.client.exceptions import PyTritonClientError
from pytriton.gateway import form, npy, offload
from pytriton.gateway.config import GatewayConfig
from pytriton.gateway.errors import RequestError, misfit, translated
from pytriton.gateway.json_tensors import Samples, encode, json_of, parse, samples_of
from pytriton.gateway.models import Model, Reply
from pytriton.gateway.request import Request
from pytriton.gateway.responses import Send, send_bytes, send_json
from pytriton.gateway.streams import EVENTS, check_backlog, send_stream, stream_error
from pytriton.model_config.triton_model_config import TritonModelConfig

_PART = 1 << 16  # bytes of a stream to send at a time, unless a single response has more
_LINES = "application/x-ndjson"
_DEFAULT_TYPES = ("application/x-www-form-urlencoded", "text/plain")  # those of curl -d and fetch for a string
_JSON = ("application/json", "text/json", "", *_DEFAULT_TYPES)
_FILE_HEADERS = {  # browsers show such a file, but do not run it
    "x-content-type-options": "nosniff",
    "content-security-policy": "sandbox",
}


async def predict(model: Model, request: Request, send: Send, config: GatewayConfig) -> None:
    """Responds to an inference request.

    Raises:
        RequestError: It is refused, or fails before the response begins.
    """
    if request.method == "GET":
        samples = samples_of(model.config, _sample_of_query(model, request), config.max_samples)
        await request.body()
    else:
        body = await request.body()
        if request.media_type == form.MEDIA_TYPE:
            samples = await form.read(model.config, request.header("content-type"), body, config.max_samples)
        else:
            size = len(body) if request.media_type == npy.MEDIA_TYPE else offload.size_of_json(body)
            samples = await offload.run(size, _samples, model, request, body, config.max_samples)
    streams = _stream_type(model, request)
    if streams is not None:
        if len(samples.arrays) != 1:
            raise RequestError(
                http.HTTPStatus.UNPROCESSABLE_ENTITY, "A stream takes one sample: send several requests."
            )
        await send_stream(request, send, streams, _parts(model, samples, request, streams))
        return
    if not samples.arrays:
        await send_json(send, [])
        return
    outputs = await _outputs(model, samples, request)
    size = sum(map(offload.size_of_arrays, outputs)) + offload.size_of_items(_count(outputs, model.config, samples))
    body, media_type = await offload.run(size, _response, model, outputs, samples, request)
    headers = None if media_type in (_JSON[0], npy.MEDIA_TYPE) else _FILE_HEADERS
    await send_bytes(send, body, media_type, headers=headers)


def _count(outputs: list[dict[str, Array]], config: TritonModelConfig, samples: Samples) -> int:
    """Returns the number of samples that are written one by one."""
    if samples.layout != "list" or not config.batching:
        return len(outputs)
    return sum(len(next(iter(each.values()), ())) for each in outputs)


def _response(model: Model, outputs: list[dict[str, Array]], samples: Samples, request: Request) -> tuple[bytes, str]:
    """Returns the body of a response, and its media type."""
    if request.accepts(npy.MEDIA_TYPE) or request.media_type == npy.MEDIA_TYPE:
        array = _only_array(outputs, samples, model.config, request)
        if array is not None:
            return npy.write(array), npy.MEDIA_TYPE
    codec = model.codec
    found = _file(outputs[0], codec.config, request)
    if found is not None:
        return found
    sample = codec.sample_of(outputs[0]) if samples.layout == "sample" else None
    return encode(sample or json_of(outputs, codec.config, samples.layout)), _JSON[0]


def _samples(model: Model, request: Request, body: bytes, max_samples: int) -> Samples:
    media_type = request.media_type
    if media_type == npy.MEDIA_TYPE:
        inputs = model.config.inputs
        name = request.query.get("input") or (inputs[0].name if len(inputs) == 1 else None)
        if name is None:
            names = ", ".join(spec.name for spec in inputs)
            raise misfit("input", f"The model has several inputs: name the one in the body by ?input= ({names}).")
        return samples_of(model.config, {name: npy.read(body)}, max_samples)
    if media_type not in _JSON:
        raise RequestError(
            http.HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"The body's type is {media_type!r}; send application/json, {form.MEDIA_TYPE} or {npy.MEDIA_TYPE}.",
        )
    arrays = model.codec.decode(body)
    if arrays is not None:
        return Samples([arrays], "sample")
    return samples_of(model.config, parse(body), max_samples)


def _sample_of_query(model: Model, request: Request) -> dict[str, Any]:
    """Returns the sample in the URL, all that an ``EventSource`` can send: text as it is, other inputs as JSON."""
    text = {spec.name for spec in model.config.inputs if spec.datatype.name == "BYTES"}
    return {name: value if name in text else parse(value.encode()) for name, value in request.query.items()}


def _stream_type(model: Model, request: Request) -> str | None:
    for media_type in (EVENTS, _LINES):
        if request.accepts(media_type):
            return media_type
    return _LINES if model.config.decoupled else None


async def _outputs(model: Model, samples: Samples, request: Request) -> list[dict[str, Array]]:
    """Sends all requests, and returns their outputs; those of the parts of a batch are joined."""
    if len(samples.arrays) == 1:
        return [await _infer(model, samples.arrays[0], request)]
    outputs = await send_several(samples.arrays, functools.partial(_infer, model, request=request))
    if samples.layout != "batch":
        return outputs
    ends = list(itertools.accumulate(max(map(len, arrays.values())) for arrays in samples.arrays))
    try:
        return [joined(outputs, list(zip([0, *ends], ends, strict=False)))]
    except PyTritonClientError as error:
        raise translated(error) from error


async def _infer(model: Model, arrays: dict[str, Array], request: Request) -> dict[str, Array]:
    call = await offload.run(offload.size_of_arrays(arrays), model.call, arrays, request)
    reply = await model.infer(call)
    return await offload.run(offload.size_of(reply), getattr, reply, "outputs")


def _only_array(
    outputs: list[dict[str, Array]], samples: Samples, config: TritonModelConfig, request: Request
) -> Array | None:
    """Returns the output for a response as an array; None if the response is to be JSON."""
    name = request.query.get("output")
    names = list(outputs[0])
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names or samples.layout == "list":
        if request.accepts(npy.MEDIA_TYPE) or name is not None:
            raise RequestError(
                http.HTTPStatus.NOT_ACCEPTABLE,
                f"A response as {npy.MEDIA_TYPE} has one output: name it by ?output= ({', '.join(names)}).",
            )
        return None
    array = outputs[0][name]
    return array[0] if config.batching and samples.layout == "sample" and array.shape[:1] == (1,) else array


def _file(outputs: Mapping[str, Array], config: TritonModelConfig, request: Request) -> tuple[bytes, str] | None:
    """Returns the output that the client accepts as a file, and its media type."""
    for spec in config.outputs:
        kind, _, subtype = spec.media_type.partition("/")
        if not kind or not request.accepts(f"{kind}/") or request.query.get("output", spec.name) != spec.name:
            continue
        array = outputs.get(spec.name)
        if array is not None and array.size == 1:
            return bytes(array.item()), "application/octet-stream" if subtype == "*" else spec.media_type
    return None


async def _parts(model: Model, samples: Samples, request: Request, media_type: str) -> AsyncGenerator[bytes, None]:
    frame = _event if media_type == EVENTS else _line
    has_begun = False
    responses = model.stream(model.call(samples.arrays[0], request))
    try:
        async for replies in responses:
            has_begun = True
            check_backlog(replies, request.budget.max_stream_backlog)
            part = b""
            for reply in replies:
                part += await offload.run(offload.size_of(reply), _part, reply, model, samples.layout, frame)
                if len(part) >= _PART:
                    yield part
                    part = b""
            if part:
                yield part
    except (RequestError, asyncio.CancelledError) as error:
        failure = stream_error(request, error, has_begun=has_begun).body()
        yield _event(failure, "error") if media_type == EVENTS else _line(failure)
    finally:
        await responses.aclose()
    if media_type == EVENTS:
        yield _event({}, "done")


def _part(reply: Reply, model: Model, layout: str, frame: Callable[[Any], bytes]) -> bytes:
    return frame(json_of([reply.outputs], model.config, layout))


def _event(body: Mapping[str, Any], kind: str = "") -> bytes:
    name = b"event: %s\n" % kind.encode() if kind else b""
    return b"%sdata: %s\n\n" % (name, encode(body))


def _line(body: Mapping[str, Any]) -> bytes:
    return encode(body) + b"\n"
