"""The fast path from and to JSON for one sample of numbers or strings, the most common request.

It accepts what fits a model exactly. Everything else takes the slow path, `json_tensors`, which also reports errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from pytriton.client.core.inputs import Array, fits
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig

_MAX_RANK = 4
_WORD = np.iinfo(np.int64)


class _Field(NamedTuple):
    name: str
    attribute: str
    shape: tuple[int, ...]
    single: bool  # a single value may replace a list of one
    convert: Callable[[Any], Array]


class SampleCodec:
    """Converts samples of one model.

    Args:
        config: The model.
    """

    def __init__(self, config: TritonModelConfig) -> None:
        self.config = config
        self._scalars = {spec.name for spec in config.outputs if spec.shape == (1,)}
        self._fields: list[_Field] = []
        declared: list[Any] = []
        for number, spec in enumerate(config.inputs):
            leaf, convert = _leaf_of(spec)
            if leaf is None or not 1 <= len(spec.shape) <= _MAX_RANK:
                self._decode: Callable[[bytes], Any] | None = None
                return
            kind: Any = leaf
            for _ in spec.shape:
                kind = list[kind]
            single = all(dim in (-1, 1) for dim in spec.shape)
            if single:
                kind = kind | leaf
            attribute = f"field_{number}"
            declared.append(
                (attribute, kind | msgspec.UnsetType, msgspec.field(name=spec.name, default=msgspec.UNSET))
                if spec.optional
                else (attribute, kind, msgspec.field(name=spec.name))
            )
            self._fields.append(_Field(spec.name, attribute, tuple(spec.shape), single, convert))
        sample = msgspec.defstruct("Sample", declared, kw_only=True, forbid_unknown_fields=True)
        self._decode = msgspec.json.Decoder(sample).decode

    def decode(self, body: bytes) -> dict[str, Array] | None:
        """Converts JSON to inputs, with the batch dimension if the model batches; None if it takes the slow path."""
        if self._decode is None:
            return None
        try:
            sample = self._decode(body)
            arrays = {}
            for field in self._fields:
                value = getattr(sample, field.attribute)
                if value is msgspec.UNSET:
                    continue
                array = field.convert(value)
                if field.single and not array.ndim:
                    array = array.reshape((1,) * len(field.shape))
                if not fits(array.shape, field.shape):
                    return None
                arrays[field.name] = array[np.newaxis] if self.config.batching else array
        except (msgspec.DecodeError, ValueError, OverflowError, RecursionError):  # the first is a ValueError since 0.21
            return None
        return arrays

    def sample_of(self, outputs: Mapping[str, Array]) -> dict[str, Any] | None:
        """Converts outputs of numbers to values for JSON; None if they take the slow path."""
        batching, sample = self.config.batching, {}
        for name, array in outputs.items():
            if array.dtype.kind not in "fiub":
                return None
            values = (array[0] if batching and array.shape[:1] == (1,) else array).tolist()
            if name in self._scalars and type(values) is list and len(values) == 1:
                values = values[0]
            sample[name] = values
        return sample


def _leaf_of(spec: TensorSpec) -> tuple[Any, Callable[[Any], Array]]:
    """Returns the type of a value, and a function that creates arrays of values; the type is None for the slow path."""
    if spec.datatype.name == "BYTES":
        return (str, _text) if spec.shape == (1,) and not spec.is_binary else (None, _text)
    dtype = spec.numpy_dtype

    def numbers(value: Any) -> Array:
        return np.array(value, dtype)

    if dtype.kind == "b":
        return bool, numbers
    if dtype.kind == "f":
        largest = float(np.finfo(dtype).max)
        return Annotated[float, msgspec.Meta(ge=-largest, le=largest)], numbers
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        if info.max <= _WORD.max:
            return Annotated[int, msgspec.Meta(ge=info.min, le=info.max)], numbers
    return None, _text


def _text(value: str | list[str]) -> Array:
    [text] = [value] if isinstance(value, str) else value
    array = np.empty(1, object)
    array[0] = text.encode()
    return array
