"""Converts plain JSON to arrays, and arrays to plain JSON."""

from __future__ import annotations

import base64
import binascii
import http
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from pytriton.client.core.inputs import OF_BATCHES, Array, arrays_of_batch, arrays_of_sample
from pytriton.client.exceptions import PyTritonClientError
from pytriton.gateway.errors import RequestError, misfit
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig

_BASE64 = "b64"
_OF_BATCHES = "for several samples, send a list of objects, or one dimension more in each input"
_MAX_SHOWN = 60  # characters of a value in an error
_NAN = re.compile(rb"[\[:,\s]NaN\b")
_decode = msgspec.json.Decoder().decode
encode = msgspec.json.Encoder().encode


class Samples(NamedTuple):
    """The inputs of a request.

    Attributes:
        arrays: For each inference request, its inputs by name, with the batch dimension if the model batches.
        layout: The form of the samples in the request, and so of those in the response: ``sample`` for one, ``batch``
            for arrays with the batch dimension, ``list`` for a list of samples.
    """

    arrays: list[dict[str, Array]]
    layout: str


def parse(body: bytes) -> Any:
    """Parses JSON.

    Raises:
        RequestError: It is not valid JSON, or nested too deeply.
    """
    if not body:
        raise RequestError(http.HTTPStatus.BAD_REQUEST, "The body is empty: send JSON.")
    try:
        return _decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise RequestError(
            http.HTTPStatus.BAD_REQUEST, f"The body is not valid JSON: {reason}{_advice(body)}."
        ) from error


def _advice(body: bytes) -> str:
    """Says what to send in place of the NaN that some libraries write, such as Python's ``json``."""
    return "; write null in place of NaN" if _NAN.search(body) else ""


def samples_of(config: TritonModelConfig, given: Any, max_samples: int) -> Samples:
    """Converts a sample, a batch or a list of samples.

    Args:
        config: The model.
        given: Parsed JSON.
        max_samples: The maximum number of samples.

    Raises:
        RequestError: Something does not fit the model; the error names the field, and what was expected and received.
    """
    if isinstance(given, list):
        _check_count(len(given), max_samples)
        samples = [_sample(config, each, f"[{number}].", batch=False) for number, each in enumerate(given)]
        return Samples(_joined(config, samples), "list")
    if not (isinstance(given, Mapping) and config.batching and _has_batch_dimension(config, given)):
        return Samples([_sample(config, given, "", batch=False)], "sample")
    _check_count(max(len(value) for value in given.values() if value is not None), max_samples)
    return Samples(_split(_sample(config, given, "", batch=True), config.max_batch_size), "batch")


def json_of(outputs: Sequence[Mapping[str, Array]], config: TritonModelConfig, layout: str) -> Any:
    """Converts the outputs of all inference requests to values for JSON; a batch is a single one, already joined."""
    if layout == "sample":
        return _of_sample(outputs[0], config)
    if layout == "batch":
        binary = _binary_outputs(config)
        return {name: values_of(array, is_binary=name in binary) for name, array in outputs[0].items()}
    if not config.batching:
        return [_of_sample(each, config) for each in outputs]
    return [
        _of_sample({name: array[row : row + 1] for name, array in each.items()}, config)
        for each in outputs
        for row in range(len(next(iter(each.values()), ())))
    ]


def values_of(array: Array, *, is_binary: bool = False) -> Any:
    """Returns an array's values as numbers, strings and lists of them; binary values as base64."""
    if array.dtype == object or array.dtype.kind in "SU":
        return _base64(array.tolist()) if is_binary else _text(array.tolist())
    if array.dtype.kind not in "biuf" or array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    return array.tolist()


def _check_count(count: int, max_samples: int) -> None:
    if count > max_samples:
        raise RequestError(
            http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"The request has {count} samples, but the limit is {max_samples}: send several requests.",
        )


def _of_sample(outputs: Mapping[str, Array], config: TritonModelConfig) -> dict[str, Any]:
    scalars = {spec.name for spec in config.outputs if spec.shape == (1,)}
    binary = _binary_outputs(config)
    sample = {}
    for name, array in outputs.items():
        row = array.reshape(array.shape[1:]) if config.batching and array.shape[:1] == (1,) else array
        values = values_of(row, is_binary=name in binary)
        sample[name] = values[0] if name in scalars and isinstance(values, list) and len(values) == 1 else values
    return sample


def _binary_outputs(config: TritonModelConfig) -> set[str]:
    return {spec.name for spec in config.outputs if spec.is_binary}


def _base64(values: Any) -> Any:
    if isinstance(values, list):
        return [_base64(each) for each in values]
    return base64.b64encode(values if isinstance(values, bytes) else str(values).encode()).decode()


def _text(values: Any) -> Any:
    if isinstance(values, list):
        return [_text(each) for each in values]
    if isinstance(values, bytes):
        try:
            return values.decode()
        except UnicodeDecodeError:
            return {_BASE64: base64.b64encode(values).decode()}
    return values


def _sample(config: TritonModelConfig, given: Any, where: str, *, batch: bool) -> dict[str, Array]:
    if not isinstance(given, Mapping):
        wanted = ", ".join(f'"{spec.name}": …' for spec in config.inputs)
        raise misfit(where.rstrip("."), f"Give an object with the inputs, {{{wanted}}}, instead of {shown(given)}.")
    known = {spec.name: spec for spec in config.inputs}
    for name in given:
        if name not in known:
            has = ", ".join(map(str, config.inputs))
            name = _shortened(name)
            other = f"; the standard protocol is at /v2/models/{config.model_name}/infer" if name == "inputs" else ""
            raise misfit(f"{where}{name}", f"Model {config.model_name!r} has no input {name!r}; it has {has}{other}.")
    arrays = {}
    for spec in config.inputs:
        if given.get(spec.name) is not None or (spec.name in given and not spec.optional):
            arrays[spec.name] = _array(config, spec, given[spec.name], f"{where}{spec.name}", batch=batch)
        elif not spec.optional:
            raise misfit(f"{where}{spec.name}", f"Input {spec} of model {config.model_name!r} is missing.")
    first = next(iter(arrays), "")
    for name, array in arrays.items():
        if batch and len(array) != len(arrays[first]):
            raise misfit(name, f"Input {name!r} has {len(array)} samples, but {first!r} has {len(arrays[first])}.")
    return arrays


def _array(config: TritonModelConfig, spec: TensorSpec, value: Any, field: str, *, batch: bool) -> Array:
    if spec.datatype.name == "BYTES":
        value = with_bytes(value, field, is_binary=spec.is_binary)
    elif spec.datatype.name != "BOOL" and _has_booleans(value):
        raise misfit(field, f"Input {spec} takes numbers, not true and false.")
    if spec.datatype.name.startswith(("FP", "BF")):
        value = _with_nan(value)
    elif spec.datatype.name.startswith(("INT", "UINT")):
        value = _with_integers(value)
    if value is None or isinstance(value, Mapping):
        taken = {"BYTES": "text", "BOOL": "true and false"}.get(spec.datatype.name, "numbers")
        raise misfit(field, f"Input {spec} takes {taken}, not {shown(value)}.")
    convert = arrays_of_batch if batch else arrays_of_sample
    try:
        [(_, array)] = convert(config, [(spec, value)], True)
    except PyTritonClientError as error:
        raise misfit(field, error.message.replace(OF_BATCHES, _OF_BATCHES)) from error
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise misfit(field, f"Input {spec} cannot be created from {shown(value)}: {error}.") from error
    return array


def with_bytes(value: Any, field: str, *, is_binary: bool) -> Any:
    """Decodes base64: the value of an object with ``b64``, and the strings of a binary input."""
    if isinstance(value, list):
        return [with_bytes(each, field, is_binary=is_binary) for each in value]
    encoded = None
    if isinstance(value, Mapping) and set(value) == {_BASE64}:
        encoded = value[_BASE64]
    elif is_binary and isinstance(value, str):
        encoded = value.partition(",")[2] if value.startswith("data:") else value
    if not isinstance(encoded, str):
        return value
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise misfit(field, f"This is not valid base64: {error}.") from error


def _has_booleans(value: Any) -> bool:
    if not isinstance(value, list):
        return isinstance(value, bool)
    types = set(map(type, value))  # without a Python loop over the elements, of which an image has many
    return bool in types or (list in types and any(map(_has_booleans, value)))


def _with_nan(value: Any) -> Any:
    """Replaces null, which stands for NaN in JSON."""
    if isinstance(value, list):
        return [_with_nan(each) for each in value] if (value and isinstance(value[0], list)) or None in value else value
    return float("nan") if value is None else value


def _with_integers(value: Any) -> Any:
    """Replaces whole numbers such as 2.0, which are integers in JSON Schema."""
    if isinstance(value, list):
        has_others = any(kind in (float, list) for kind in set(map(type, value)))
        return list(map(_with_integers, value)) if has_others else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _has_batch_dimension(config: TritonModelConfig, given: Mapping[str, Any]) -> bool:
    ranks = {spec.name: len(spec.shape) for spec in config.inputs}
    values = {name: value for name, value in given.items() if value is not None}
    return bool(values) and all(name in ranks and _rank(value) == ranks[name] + 1 for name, value in values.items())


def _rank(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.ndim
    rank = 0
    while isinstance(value, list):
        rank += 1
        value = value[0] if value else None
    return rank


def _split(arrays: dict[str, Array], max_batch_size: int) -> list[dict[str, Array]]:
    rows = max((len(array) for array in arrays.values()), default=0)
    starts = range(0, rows, max_batch_size)
    if len(starts) <= 1:
        return [arrays]
    return [{name: array[at : at + max_batch_size] for name, array in arrays.items()} for at in starts]


def _joined(config: TritonModelConfig, samples: list[dict[str, Array]]) -> list[dict[str, Array]]:
    """Joins consecutive samples that have the same inputs and shapes into batches."""
    if not config.batching:
        return samples
    joined: list[list[dict[str, Array]]] = []
    for sample in samples:
        group = joined[-1] if joined and sample else None  # without inputs, nothing tells the size of a batch
        if group is None or len(group) >= config.max_batch_size or _shapes(group[0]) != _shapes(sample):
            joined.append([sample])
        else:
            group.append(sample)
    return [{name: np.concatenate([each[name] for each in group]) for name in group[0]} for group in joined]


def _shapes(sample: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in sample.items()}


def shown(value: Any) -> str:
    """Returns a value of a request for an error message, shortened if it is long."""
    if isinstance(value, np.ndarray):
        return f"an array of dtype {value.dtype} and shape {value.shape}"
    return _shortened(encode(_beginning(value)).decode(errors="replace"))


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _beginning(value: Any) -> Any:
    """Returns as much of a value as can be shown, since the value may be as large as the body."""
    if isinstance(value, Mapping):
        return {name[: _MAX_SHOWN + 1]: _beginning(value[name]) for name in itertools.islice(value, _MAX_SHOWN)}
    if isinstance(value, list):
        return [_beginning(each) for each in value[: 1 if value and isinstance(value[0], list) else _MAX_SHOWN]]
    return value[: _MAX_SHOWN + 1] if isinstance(value, str | bytes) else value
