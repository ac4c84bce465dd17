"""Type hints of arrays: those of jaxtyping and of NumPy."""

from __future__ import annotations

import typing
from typing import Any, Literal, NamedTuple

import numpy as np

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.datatypes import datatype_of

BATCH = "batch"
"""The name of the first dimension of arrays that Triton batches."""

_LIKE_BATCH = (BATCH, "batch_size")  # in any case

_TORCH, _JAX = "torch", "jax"
_VARIADIC = ("...", "*")
_MODIFIERS = "#?_"


class ArrayHint(NamedTuple):
    """The array that a type hint describes.

    Attributes:
        dtype: The type of its elements; None if the hint leaves it open.
        shape: Its dimensions without the batch; -1 for a variable one.
        batched: Whether the first dimension is the batch; None if the hint leaves it open.
        kind: The class of the array.
    """

    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    batched: bool | None
    kind: Any


def array_hint(hint: Any) -> ArrayHint | None:
    """Reads the type hint of an array; None if it is not one.

    Raises:
        PyTritonBadParameterError: It leaves the dtype or the number of dimensions open.

    Examples:
        >>> array_hint(np.ndarray[tuple[int, int], np.dtype[np.uint8]])
        ArrayHint(dtype=dtype('uint8'), shape=(-1, -1), batched=None, kind=<class 'numpy.ndarray'>)
    """
    if all(hasattr(hint, name) for name in ("dtypes", "dim_str", "array_type")):
        return _of_jaxtyping(hint)
    if typing.get_origin(hint) is np.ndarray:
        return _of_numpy(hint)
    if is_array_type(hint):
        raise PyTritonBadParameterError(
            f"is {_name(hint)}, without dtype and dimensions; write Float32[{_name(hint)}, "
            f'"{BATCH} n"] (jaxtyping), or Annotated[{_name(hint)}, Tensor(shape=(-1,), dtype=np.float32)].'
        )
    return None


def is_array_type(hint: Any) -> bool:
    """Returns whether a type is a class of arrays of NumPy, PyTorch or JAX, without dtype and dimensions."""
    return hint is np.ndarray or (isinstance(hint, type) and library_of(hint) is not None)


def library_of(kind: type) -> str | None:
    """Returns the library that a class of arrays belongs to, ``torch`` or ``jax``; None for any other."""
    library, name = kind.__module__.partition(".")[0], kind.__name__
    return library if (library, name) in ((_TORCH, "Tensor"), (_JAX, "Array"), (_JAX, "ArrayImpl")) else None


def _name(kind: Any) -> str:
    return "np.ndarray" if kind is np.ndarray else f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def _of_jaxtyping(hint: Any) -> ArrayHint:
    # jaxtyping documents only `dim_str` and `dtypes` of its types; its representation of dimensions is private.
    written = hint.__name__
    kind = hint.array_type
    if kind is not np.ndarray and not (isinstance(kind, type) and library_of(kind)):
        raise PyTritonBadParameterError(
            f"is {written}, a class of arrays that is not supported; use np.ndarray or torch.Tensor in it."
        )
    dimensions = hint.dim_str.split()
    first = _without_modifiers(dimensions[0]) if dimensions else ""
    batched = first == BATCH
    if first.lower() in _LIKE_BATCH and not batched:
        raise PyTritonBadParameterError(
            f"is {written}, whose first dimension is called {first!r}; call it {BATCH!r} if Triton batches it, or "
            "choose another name."
        )
    shape = tuple(_size(dimension, written) for dimension in dimensions[batched:])
    return ArrayHint(_only_dtype(hint, written), shape, batched, kind)


def _only_dtype(hint: Any, written: str) -> np.dtype[Any]:
    names = hint.dtypes if isinstance(hint.dtypes, list | tuple) else ()
    found = {}
    for name in names:
        try:
            found[datatype_of(name).name] = datatype_of(name).numpy_dtype
        except PyTritonBadParameterError:
            continue
    if len(found) == 1:
        return next(iter(found.values()))
    if names and not found:
        raise PyTritonBadParameterError(
            f"is {written}, of a dtype that Triton does not have; write Float32, for example."
        )
    raise PyTritonBadParameterError(
        f"is {written}, which stands for several dtypes, and Triton needs one; write Float32 or UInt8, for example."
    )


def _size(dimension: str, written: str) -> int:
    plain = _without_modifiers(dimension)
    if dimension.startswith(_VARIADIC) or plain.startswith(_VARIADIC):
        raise PyTritonBadParameterError(
            f"is {written}, of any number of dimensions ({dimension!r}), and Triton needs to know how many; "
            "name each of them."
        )
    return int(plain) if plain.isdecimal() else -1


def _without_modifiers(dimension: str) -> str:
    return dimension.rpartition("=")[2].lstrip(_MODIFIERS)


def _of_numpy(hint: Any) -> ArrayHint:
    shape, dtype = typing.get_args(hint)
    scalars = typing.get_args(dtype)
    scalar = scalars[0] if scalars else dtype
    if not (isinstance(scalar, type) and issubclass(scalar, np.generic)):
        raise PyTritonBadParameterError(
            "is an array of any dtype, and Triton needs one; write NDArray[np.float32], for example."
        )
    return ArrayHint(datatype_of(scalar).numpy_dtype, _numpy_shape(shape), None, np.ndarray)


def _numpy_shape(shape: Any) -> tuple[int, ...]:
    """Returns the dimensions of ``tuple[int, Literal[3]]``; an array of any rank counts as a vector."""
    dimensions = typing.get_args(shape)
    if typing.get_origin(shape) is not tuple or Ellipsis in dimensions:
        return (-1,)
    return tuple(typing.get_args(each)[0] if typing.get_origin(each) is Literal else -1 for each in dimensions)
