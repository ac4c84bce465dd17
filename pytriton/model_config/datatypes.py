"""Triton's datatypes, and the NumPy dtype of each."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, cast

import numpy as np

from pytriton.exceptions import PyTritonBadParameterError


@dataclasses.dataclass(frozen=True)
class Datatype:
    """One of Triton's datatypes.

    Attributes:
        name: Name in the KServe protocol, for example ``FP32``.
        config_name: Name in a model configuration, for example ``TYPE_FP32``.
        code: Value in the enumeration ``TRITONSERVER_DataType``.
        itemsize: Bytes of one element; 0 for ``BYTES``, whose elements vary.
        numpy: Native NumPy dtype of its arrays: ``object`` for ``BYTES``, None for ``BF16``, which NumPy lacks
            (see `numpy_dtype`).
    """

    name: str
    config_name: str
    code: int
    itemsize: int
    numpy: np.dtype[Any] | None

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """NumPy dtype of its arrays, that of ml_dtypes for ``BF16``.

        Raises:
            PyTritonBadParameterError: It is ``BF16`` and ml_dtypes is not installed.
        """
        if self.numpy is not None:
            return self.numpy
        try:
            ml_dtypes = importlib.import_module("ml_dtypes")
        except ImportError as error:
            raise PyTritonBadParameterError(
                "Datatype BF16 needs the package ml_dtypes, which is not installed; run `pip install ml_dtypes`."
            ) from error
        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16


DATATYPES: tuple[Datatype, ...] = (
    Datatype("BOOL", "TYPE_BOOL", 1, 1, np.dtype(np.bool_)),
    Datatype("UINT8", "TYPE_UINT8", 2, 1, np.dtype(np.uint8)),
    Datatype("UINT16", "TYPE_UINT16", 3, 2, np.dtype(np.uint16)),
    Datatype("UINT32", "TYPE_UINT32", 4, 4, np.dtype(np.uint32)),
    Datatype("UINT64", "TYPE_UINT64", 5, 8, np.dtype(np.uint64)),
    Datatype("INT8", "TYPE_INT8", 6, 1, np.dtype(np.int8)),
    Datatype("INT16", "TYPE_INT16", 7, 2, np.dtype(np.int16)),
    Datatype("INT32", "TYPE_INT32", 8, 4, np.dtype(np.int32)),
    Datatype("INT64", "TYPE_INT64", 9, 8, np.dtype(np.int64)),
    Datatype("FP16", "TYPE_FP16", 10, 2, np.dtype(np.float16)),
    Datatype("FP32", "TYPE_FP32", 11, 4, np.dtype(np.float32)),
    Datatype("FP64", "TYPE_FP64", 12, 8, np.dtype(np.float64)),
    Datatype("BYTES", "TYPE_STRING", 13, 0, np.dtype(np.object_)),
    Datatype("BF16", "TYPE_BF16", 14, 2, None),
)

_BY_NAME = {datatype.name: datatype for datatype in DATATYPES}
_BY_ANY_NAME = {
    spelled: datatype
    for datatype in DATATYPES
    for name in (datatype.name, datatype.config_name, datatype.config_name.removeprefix("TYPE_"))
    for spelled in (name, name.lower())
}
_BY_CODE = {datatype.code: datatype for datatype in DATATYPES}
_BY_DTYPE = {datatype.numpy: datatype for datatype in DATATYPES if datatype.numpy is not None}
_BY_NUMPY_NAME = {dtype.name: datatype for dtype, datatype in _BY_DTYPE.items()} | {"bfloat16": _BY_NAME["BF16"]}
_BYTES = _BY_NAME["BYTES"]
_BF16 = _BY_NAME["BF16"]

BYTES_CODE = _BYTES.code
"""Code of the datatype whose elements vary in size."""

BYTES_KINDS = "OSUT"
"""Kinds of dtypes that are sent as BYTES; ``T`` is NumPy 2's StringDType."""

_BUILTIN_TYPES = frozenset({bool, int, float, complex, bytes, str, object})
# Without abstract types such as np.integer, which np.dtype() would silently convert to int64.
_CONCRETE_TYPES = frozenset(np.sctypeDict.values())
_SUPPORTED = (
    ", ".join(str(datatype.numpy) for datatype in DATATYPES if datatype not in (_BYTES, _BF16))
    + f", bfloat16 (of ml_dtypes), bytes, str and object, or of {', '.join(_BY_NAME)}"
)


def datatype_of(dtype: Any) -> Datatype:
    """Finds Triton's datatype for a dtype, however the user specifies it.

    Args:
        dtype: A NumPy scalar type (``np.float32``), a ``np.dtype``, a name (``"float32"``, ``"S5"``, ``"FP32"``,
            ``"fp32"``, ``"TYPE_FP32"``), a Python type (``bool``, ``int``, ``float``, ``bytes``, ``str``, ``object``)
            or ``ml_dtypes.bfloat16``. Objects, bytes and strings of any length are all ``BYTES``.

    Returns:
        The datatype.

    Raises:
        PyTritonBadParameterError: Triton has no such datatype.

    Examples:
        >>> datatype_of("float32").name
        'FP32'
    """
    if isinstance(dtype, str):
        named = _BY_ANY_NAME.get(dtype)
        if named is not None:
            return named
        if dtype == "bfloat16":
            return _BF16
    numpy_dtype = _as_numpy(dtype)
    found = _BY_DTYPE.get(numpy_dtype)
    if found is not None:
        return found
    if numpy_dtype.kind in BYTES_KINDS:
        return _BYTES
    if not numpy_dtype.isnative:
        raise PyTritonBadParameterError(
            f"dtype {numpy_dtype.str!r} has the byte order of another machine; "
            f"use {numpy_dtype.newbyteorder('=').name!r}, and convert arrays with `array.astype`."
        )
    if numpy_dtype.name == "bfloat16":
        return _BF16
    raise _unsupported(dtype)


def datatype_by_code(code: int) -> Datatype:
    """Finds a datatype by its value in ``TRITONSERVER_DataType``.

    Args:
        code: 1 (``BOOL``) to 14 (``BF16``).

    Returns:
        The datatype.

    Raises:
        PyTritonBadParameterError: No datatype has that code.
    """
    try:
        return _BY_CODE[code]
    except KeyError:
        raise PyTritonBadParameterError(
            f"{code!r} is not the code of a Triton datatype; the codes are 1 (BOOL) to 14 (BF16)."
        ) from None


def datatype_by_name(name: str) -> Datatype:
    """Finds a datatype by its name in the KServe protocol.

    Args:
        name: For example ``"FP32"``.

    Returns:
        The datatype.

    Raises:
        PyTritonBadParameterError: No datatype has that name.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise PyTritonBadParameterError(
            f"{name!r} is not the name of a Triton datatype; the names are {', '.join(_BY_NAME)}."
        ) from None


class _CodeByDtype(dict[np.dtype[Any], int]):
    """Codes of the native dtypes; those of other dtypes are computed on first use."""

    def __missing__(self, dtype: np.dtype[Any]) -> int:
        code = datatype_of(dtype).code
        if dtype.kind not in "SU":  # not cached: each length is a separate dtype, and their number is unbounded
            self[dtype] = code
        return code


class _DtypeByCode(dict[int, np.dtype[Any]]):
    """NumPy dtypes by code; that of BF16 is imported on first use."""

    def __missing__(self, code: int) -> np.dtype[Any]:
        dtype = datatype_by_code(code).numpy_dtype
        self[code] = dtype
        return dtype


CODE_BY_DTYPE: dict[np.dtype[Any], int] = _CodeByDtype({dtype: datatype.code for dtype, datatype in _BY_DTYPE.items()})
"""Code of the datatype of an array: ``CODE_BY_DTYPE[array.dtype]``. Raises as `datatype_of` does."""

DTYPE_BY_CODE: dict[int, np.dtype[Any]] = _DtypeByCode({datatype.code: dtype for dtype, datatype in _BY_DTYPE.items()})
"""NumPy dtype of a code: ``DTYPE_BY_CODE[11]`` is float32. Raises as `datatype_by_code` does."""


def _as_numpy(dtype: Any) -> np.dtype[Any]:
    # np.dtype() converts what it does not know to float64 (None) or object (any class).
    if dtype is None or (isinstance(dtype, type) and not _is_scalar_type(dtype) and not issubclass(dtype, np.dtype)):
        raise _unsupported(dtype)
    try:
        if isinstance(dtype, type) and issubclass(dtype, np.dtype):
            # A class of dtypes, such as np.dtypes.Float32DType, has its one dtype as its instance.
            dtype = cast("Any", dtype)()
        numpy_dtype: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise _unsupported(dtype) from error
    return numpy_dtype


def _is_scalar_type(dtype: type) -> bool:
    if dtype in _BUILTIN_TYPES or dtype in _CONCRETE_TYPES:
        return True
    return issubclass(dtype, np.generic) and dtype.__name__ == "bfloat16"


def _unsupported(dtype: Any) -> PyTritonBadParameterError:
    written = dtype.__name__ if isinstance(dtype, type) else str(dtype) or "''"
    library, _, name = written.rpartition(".")
    if library and name in _BY_ANY_NAME | _BY_NUMPY_NAME:  # such as torch.float32, or "np.float32"
        return PyTritonBadParameterError(f"dtype {written} is not one of NumPy's; use {name!r}.")
    return PyTritonBadParameterError(f"dtype {written} is not one that Triton has; use one of {_SUPPORTED}.")
