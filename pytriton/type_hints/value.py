"""The type hint of one value, an argument or an output, and the tensor that it describes."""

from __future__ import annotations

import collections.abc
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.datatypes import datatype_of
from pytriton.model_config.tensor import Tensor
from pytriton.type_hints import python_values
from pytriton.type_hints.array import ArrayHint, array_hint, is_array_type
from pytriton.type_hints.namespace import without_alias

ADVICE = (
    'write a type of jaxtyping such as Float32[np.ndarray, "batch n"], NDArray[np.float32], '
    "Annotated[np.ndarray, Tensor(shape=(-1,), dtype=np.float32)], or str, bytes, float, int, bool or list[str]"
)
"""The type hints to use instead, for error messages."""

_SCALARS: dict[Any, Any] = {str: bytes, bytes: bytes, bool: np.bool_, int: np.int64, float: np.float64}
_CONSTRAINTS = ("annotated_types", "pydantic.fields", "pydantic.functional_validators", "pydantic.types")
_LISTS = (list, collections.abc.Sequence)

Decode = Callable[[Any], Any]
Encode = Callable[[Any], Any]


class ValueHint(NamedTuple):
    """The value that a type hint describes.

    Attributes:
        tensor: The tensor, without a name unless the hint has one.
        batched: Whether the first dimension is the batch; None if the hint fits both.
        optional: Whether the value may be None.
        decode: Converts an array from a request to the value; None if the array is the value.
        encode: Converts the value to an array for a response; None if the value is an array.
    """

    tensor: Tensor
    batched: bool | None
    optional: bool = False
    decode: Decode | None = None
    encode: Encode | None = None


def value_hint(hint: Any) -> ValueHint:
    """Reads the type hint of one value.

    Args:
        hint: The type, resolved: no string.

    Raises:
        PyTritonBadParameterError: It does not describe a tensor; the message is the end of a sentence.

    Examples:
        >>> value_hint(list[str]).tensor
        Tensor(shape=(-1,), dtype=<class 'bytes'>, name=None, optional=False, media_type=None)
    """
    hint = without_alias(hint)
    inner = _without_none(hint)
    if inner is not None:
        return value_hint(inner)._replace(optional=True)
    _refuse_constraints(hint)
    declared = _declared_tensor(hint)
    if declared is not None:
        return _with_tensor(typing.get_args(hint)[0], declared)
    if typing.get_origin(hint) is Annotated:
        return value_hint(typing.get_args(hint)[0])
    array = array_hint(hint)
    if array is not None:
        return _of_array(array)
    scalar, rank = _element(hint)
    if rank > 0 or scalar in _SCALARS or _is_numpy_scalar(scalar):
        return _of_python(scalar, (-1,) * rank or (1,), rank)
    raise PyTritonBadParameterError(f"has the type hint {shown(hint)}, which does not describe a tensor; {ADVICE}.")


def shown(hint: Any) -> str:
    """Returns a type as it is written in code."""
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")


def _without_none(hint: Any) -> Any:
    """Returns ``T`` of ``Optional[T]``; None for any other hint."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return None
    left = [each for each in typing.get_args(hint) if each is not type(None)]
    if len(left) == 1 and len(left) < len(typing.get_args(hint)):
        return left[0]
    raise PyTritonBadParameterError(f"has the type hint {shown(hint)}, a choice of several types; write one of them.")


def _refuse_constraints(hint: Any) -> None:
    """Refuses ``Annotated[int, Field(gt=0)]`` of pydantic, whose users rely on such checks: nothing would make them."""
    if typing.get_origin(hint) is not Annotated:
        return
    for each in hint.__metadata__:
        module = type(each).__module__
        checks = getattr(each, "metadata", ()) if module == "pydantic.fields" else [each]
        if checks and module in _CONSTRAINTS:
            raise PyTritonBadParameterError(
                f"has the constraint {checks[0]!r}, which would not be checked; remove it, and check the value in the "
                "function: raise PyTritonInvalidRequestError(...)."
            )


def _declared_tensor(hint: Any) -> Tensor | None:
    if typing.get_origin(hint) is not Annotated:
        return None
    return next((each for each in hint.__metadata__ if isinstance(each, Tensor)), None)


def _with_tensor(kind: Any, tensor: Tensor) -> ValueHint:
    """Returns the hint for ``Annotated[kind, tensor]``: the tensor is declared; the kind is the value's type."""
    inner = _without_none(kind)
    if inner is not None:
        return _with_tensor(inner, tensor)._replace(optional=True)
    array = array_hint(kind) if not is_array_type(kind) else ArrayHint(None, (), None, kind)
    if array is not None or kind is Any:
        return ValueHint(tensor, None if array is None else array.batched, bool(tensor.optional), *_conversions(array))
    scalar, rank = _element(kind)
    plain = value_hint(kind)
    if rank == 0 and any(dim not in (1, -1) for dim in tensor.shape):
        raise PyTritonBadParameterError(
            f"is one {shown(kind)}, but its Tensor has the shape {tensor.shape}; write shape=(1,)."
        )
    if datatype_of(_SCALARS.get(scalar, scalar)).name == "BYTES" != tensor.datatype.name:
        raise PyTritonBadParameterError(f"is {shown(kind)}, but its Tensor has the dtype {tensor.datatype.name}.")
    codec = python_values.codec(scalar, tensor.datatype.numpy_dtype, rank, tensor.shape)
    return plain._replace(tensor=tensor, optional=bool(tensor.optional), decode=codec.decode, encode=codec.encode)


def _of_array(array: ArrayHint) -> ValueHint:
    assert array.dtype is not None
    return ValueHint(Tensor(shape=array.shape, dtype=array.dtype), array.batched, False, *_conversions(array))


def _conversions(array: ArrayHint | None) -> tuple[Decode | None, Encode | None]:
    if array is None:
        return None, None
    codec = python_values.array_codec(array.kind)
    decode, encode = (None, None) if codec is None else (codec.decode, codec.encode)
    if array.shape == () and array.batched is False:  # Triton sends a scalar as a vector of one element
        inner = decode or _as_it_is
        return lambda value: inner(value.reshape(())), encode
    return decode, encode


def _as_it_is(value: Any) -> Any:
    return value


def _of_python(scalar: Any, shape: tuple[int, ...], rank: int) -> ValueHint:
    dtype = _SCALARS.get(scalar, scalar)
    codec = python_values.codec(scalar, datatype_of(dtype).numpy_dtype, rank, shape)
    return ValueHint(Tensor(shape=shape, dtype=dtype), False, False, codec.decode, codec.encode)


def _element(hint: Any) -> tuple[Any, int]:
    """Returns the innermost type of nested lists, and the depth of nesting: 1 for ``list[int]``."""
    rank = 0
    while typing.get_origin(hint) in _LISTS:
        (hint,) = typing.get_args(hint)
        rank += 1
    if rank and not (hint in _SCALARS or _is_numpy_scalar(hint)):
        raise PyTritonBadParameterError(f"is a list of {shown(hint)}, which is not a tensor; {ADVICE}.")
    return hint, rank


def _is_numpy_scalar(hint: Any) -> bool:
    if not (isinstance(hint, type) and issubclass(hint, np.generic)):
        return False
    try:
        return datatype_of(hint).name != "BYTES"
    except PyTritonBadParameterError:
        return False
