"""Declaration of one input or output of a model."""

from __future__ import annotations

import dataclasses
import operator
import re
from typing import Any

import numpy as np

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.datatypes import Datatype, datatype_of

_MAX_DIM = 2**63 - 1
_MEDIA_TYPE = re.compile(r"[a-z]+/(\*|[a-z0-9][a-z0-9.+-]*)")


@dataclasses.dataclass(frozen=True, eq=False)
class Tensor:
    """One input or output of a model.

    Two tensors are equal when they describe the same thing: ``dtype=np.float32`` and ``dtype="float32"`` do.

    Args:
        shape: Size of each dimension **without the batch dimension**; -1 for a variable size (which may also be 0).
            ``()`` is a scalar. Triton has no tensors without dimensions, so clients send a scalar with the shape
            ``(1,)`` to a model without batching, and ``(batch, 1)`` to a model with batching. The inference callable
            gets the latter as ``(batch,)``.
        dtype: Type of the elements, as any of ``np.float32``, ``np.dtype("float32")`` (kept as ``np.float32``),
            ``"float32"``, Triton's own name ``"FP32"`` or ``"fp32"``, ``bytes``, ``str``, ``object``, ``bool``,
            ``int``, ``float``, ``ml_dtypes.bfloat16``. Bytes, strings and objects are all Triton's ``BYTES``.
        name: The name in requests and responses. By default, it is the position, from 1: ``INPUT_1``, ``OUTPUT_1``.
        optional: A request may omit this input. Ignored for an output.
        media_type: What bytes contain, such as ``image/*`` or ``audio/wav``. The gateway then accepts files and base64
            for an input, sends an output as base64 or as it is, and shows both on its pages.

    Raises:
        PyTritonBadParameterError: A dimension is neither -1 nor a positive integer, Triton has no such dtype, the name
            is empty, the media type is invalid, or the tensor has one but its dtype is not bytes.

    Examples:
        >>> Tensor(name="image", dtype=np.uint8, shape=(-1, -1, 3)).datatype.name
        'UINT8'
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any] | type[np.dtype[Any]] | type[object] | str
    name: str | None = None
    optional: bool | None = False
    media_type: str | None = None

    def __post_init__(self) -> None:
        """Checks the fields."""
        if self.name is not None and not (isinstance(self.name, str) and self.name and _encodable(self.name)):
            order = "; the fields are shape, dtype, name, in this order" if isinstance(self.name, (tuple, list)) else ""
            raise PyTritonBadParameterError(
                f"Tensor name {self.name!r} is not a non-empty string of Unicode text{order}; name it, or omit the "
                "name to have it named by its position."
            )
        if isinstance(self.optional, (str, bytes)):
            raise PyTritonBadParameterError(f"{self._label} has optional={self.optional!r}; use True or False.")
        object.__setattr__(self, "shape", _checked_shape(self.shape, self._label))
        try:
            datatype = datatype_of(self.dtype)
        except PyTritonBadParameterError as error:
            raise PyTritonBadParameterError(f"{self._label}: {error.message}") from error
        object.__setattr__(self, "_datatype", datatype)
        if isinstance(self.dtype, np.dtype):
            object.__setattr__(self, "dtype", self.dtype.type)
        if self.media_type is None:
            return
        if not (isinstance(self.media_type, str) and _MEDIA_TYPE.fullmatch(self.media_type)):
            raise PyTritonBadParameterError(
                f"{self._label} has media type {self.media_type!r}; write one like 'image/png', or 'image/*'."
            )
        if datatype.name != "BYTES":
            raise PyTritonBadParameterError(
                f"{self._label} has media type {self.media_type!r} and dtype {datatype.name}: only bytes have one."
            )

    @property
    def datatype(self) -> Datatype:
        """Triton's datatype of the elements."""
        datatype: Datatype = self._datatype  # type: ignore[attr-defined]
        return datatype

    def __eq__(self, other: object) -> bool:
        """Returns whether the other tensor describes the same thing."""
        if not isinstance(other, Tensor):
            return NotImplemented
        return self._key == other._key

    def __hash__(self) -> int:
        """Hashes what the tensor describes."""
        return hash(self._key)

    @property
    def _key(self) -> tuple[object, ...]:
        return self.name, self.shape, self.datatype.code, bool(self.optional), self.media_type

    @property
    def _label(self) -> str:
        return "Tensor" if self.name is None else f"Tensor {self.name!r}"


def _encodable(text: str) -> bool:
    """Returns whether the text can be encoded as UTF-8; lone surrogates cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _checked_shape(shape: Any, label: str) -> tuple[int, ...]:
    try:
        if isinstance(shape, (str, bytes)):
            raise TypeError
        dims = tuple(int(dim) if isinstance(dim, float) and dim.is_integer() else operator.index(dim) for dim in shape)
    except TypeError as error:
        raise PyTritonBadParameterError(
            f"{label} has shape {shape!r}, which is not a sequence of integers; {_shape_remedy(shape)}."
        ) from error
    for dim in dims:
        if dim == 0:
            raise PyTritonBadParameterError(
                f"{label} has shape {dims} with a dimension of 0, which Triton does not accept; "
                "write -1, a varying dimension may be 0."
            )
        if dim < -1 or dim > _MAX_DIM:
            raise PyTritonBadParameterError(
                f"{label} has shape {dims} with a dimension of {dim}; write a positive size, or -1 where it varies."
            )
    return dims


def _shape_remedy(shape: Any) -> str:
    """Returns what to do about a shape that is not a sequence of integers."""
    if isinstance(shape, int) or (isinstance(shape, str) and shape.isdecimal()):
        return f"write ({shape},)"
    if isinstance(shape, (list, tuple)) and all(dim is None or isinstance(dim, (int, str)) for dim in shape):
        return "write -1 for each dimension that varies, and the size of each that does not"
    if isinstance(shape, (type, np.dtype)):
        return "the fields are shape, dtype, name, in this order: write Tensor(name=..., dtype=..., shape=...)"
    return "write one like (-1, 3), or (1,)"
