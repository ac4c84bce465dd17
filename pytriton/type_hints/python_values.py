"""Conversions between arrays and the values of functions with type hints: Python's own, and tensors of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pytriton.exceptions import PyTritonValidationError
from pytriton.type_hints.array import library_of


class Codec(NamedTuple):
    """Converts an array of a request to a value, and a value to an array of a response."""

    decode: Callable[[Any], Any]
    encode: Callable[[Any], Any]


def codec(scalar: Any, dtype: np.dtype[Any], rank: int, shape: tuple[int, ...]) -> Codec:
    """Returns the conversions of a Python value.

    Args:
        scalar: Its type, or that of its elements: ``str``, ``bytes``, ``int``, ``float``, ``bool``, or one of NumPy.
        dtype: The array's.
        rank: 0 for one value; otherwise the number of nested lists.
        shape: The tensor's shape.
    """
    single = rank == 0
    if scalar is str:
        return Codec(_decode_text if single else _decode_texts, _Texts(str, single, rank, shape))
    if scalar is bytes:
        return Codec(_item if single else _to_list, _Texts(bytes, single, rank, shape))
    if scalar in (int, float, bool):
        return Codec(_item if single else _to_list, _Numbers(dtype, single, rank, shape))
    return Codec(_first if single else _to_list, _Numbers(dtype, single, rank, shape))


def array_codec(kind: Any) -> Codec | None:
    """Returns the conversions of a class of arrays; None for NumPy's."""
    library = library_of(kind) if isinstance(kind, type) else None
    if library == "torch":
        return Codec(_to_torch, _from_torch)
    return None if library is None else Codec(_to_jax, np.asarray)


class _Numbers:
    """Converts a number, or nested lists of numbers, to an array, unless that changes a value."""

    def __init__(self, dtype: np.dtype[Any], single: bool, rank: int, shape: tuple[int, ...]) -> None:
        self._dtype, self._single, self._rank, self._shape = dtype, single, rank, shape

    def __call__(self, value: Any) -> np.ndarray[Any, Any]:
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise PyTritonValidationError(f"is {value!r:.200}, whose lists have different lengths") from error
        if array.size and not np.can_cast(array.dtype, self._dtype, "same_kind"):
            advice = "is a return missing?" if value is None else "convert it, or declare another type"
            raise PyTritonValidationError(f"is {value!r:.200}, and not of dtype {self._dtype}; {advice}")
        with np.errstate(over="ignore"):
            converted = array.astype(self._dtype)
        if array.dtype.kind in "iu" and self._dtype.kind in "iu" and not np.array_equal(array, converted):
            raise PyTritonValidationError(f"is {value!r:.200}, which does not fit {self._dtype}")
        return _shaped(converted, self._single, self._rank, self._shape)


class _Texts:
    """Converts a text, or nested lists of texts, to an array."""

    def __init__(self, kind: type[str] | type[bytes], single: bool, rank: int, shape: tuple[int, ...]) -> None:
        self._kind, self._single, self._rank, self._shape = kind, single, rank, shape

    def __call__(self, value: Any) -> np.ndarray[Any, Any]:
        array = np.empty((), object)
        if self._single:
            array[()] = value
        else:
            array = np.asarray(value, object)
        items = [self._encoded(each) for each in array.ravel().tolist()]
        encoded = np.empty(len(items), object)
        encoded[:] = items
        return _shaped(encoded.reshape(array.shape), self._single, self._rank, self._shape)

    def _encoded(self, value: Any) -> bytes:
        if not isinstance(value, self._kind):
            raise PyTritonValidationError(f"is {value!r:.200}, and not {self._kind.__name__}")
        return value.encode() if isinstance(value, str) else value


def _shaped(array: np.ndarray[Any, Any], single: bool, rank: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if single and array.size == 1:
        return array.reshape((1,) * len(shape))
    if array.ndim != rank and not (array.size == 0 and array.ndim < rank):
        raise PyTritonValidationError(f"has {array.ndim} dimensions, and not {rank}")
    return array if array.ndim == rank else array.reshape(array.shape + (0,) * (rank - array.ndim))


def _item(array: Any) -> Any:
    return array.item()


def _first(array: Any) -> Any:
    return array.reshape(-1)[0]


def _to_list(array: Any) -> Any:
    return array.tolist()


def _decode_text(array: Any) -> str:
    return _text(array.item())


def _decode_texts(array: Any) -> Any:
    return _each_text(array.tolist())


def _each_text(value: Any) -> Any:
    return [_each_text(each) for each in value] if isinstance(value, list) else _text(value)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise PyTritonValidationError(f"is not UTF-8 text: {error}") from error


def _to_torch(array: Any) -> Any:
    import torch

    return torch.from_numpy(array)


def _from_torch(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy()


def _to_jax(array: Any) -> Any:
    import jax.numpy

    return jax.numpy.asarray(array)
