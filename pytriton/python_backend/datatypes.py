"""Conversions between the datatypes of Triton and of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.datatypes import CODE_BY_DTYPE, DATATYPES, DTYPE_BY_CODE, datatype_by_code, datatype_of
from pytriton.python_backend.errors import TritonModelException

BF16 = 14
"""Code of the datatype that NumPy lacks."""

OPAQUE = np.dtype("V2")
"""Dtype of arrays of BF16 if ml_dtypes is not installed: their elements cannot be read."""

TRITON_STRING_TO_NUMPY = {each.config_name: each.numpy.type for each in DATATYPES if each.numpy is not None}
"""NumPy types by the datatypes of a model's configuration, without ``TYPE_BF16``, which NumPy lacks."""


class DatatypeError(TritonModelException, KeyError):
    """Raised for a name without a NumPy type. It is a ``KeyError``, which models of Triton's Python backend catch."""

    __str__ = Exception.__str__  # that of KeyError shows the message in quotes


_BY_CONFIG_NAME = {datatype.config_name: datatype.code for datatype in DATATYPES}


def allow_bf16() -> None:
    """Supports tensors of BF16 even if ml_dtypes is not installed."""
    try:
        DTYPE_BY_CODE[BF16]
    except PyTritonBadParameterError:
        DTYPE_BY_CODE[BF16] = OPAQUE
        CODE_BY_DTYPE[OPAQUE] = BF16


def triton_to_numpy_type(data_type: int | str) -> Any:
    """Returns the NumPy type for the code of a Triton datatype: ``np.float32`` for 11 (FP32).

    A datatype of a model's configuration, such as ``"TYPE_FP32"``, is accepted as well.

    Raises:
        TritonModelException: No datatype has that code, or it is BF16 and ml_dtypes is not installed.
    """
    try:
        code = _BY_CONFIG_NAME.get(data_type, 0) if isinstance(data_type, str) else int(data_type)
        dtype = datatype_by_code(code).numpy_dtype
    except PyTritonBadParameterError as error:
        raise TritonModelException(str(error)) from None
    return dtype.type


def numpy_to_triton_type(data_type: Any) -> int:
    """Returns the code of the Triton datatype for a NumPy type or dtype: 11 for ``np.float32``.

    Raises:
        TritonModelException: Triton has no such datatype.
    """
    try:
        return datatype_of(data_type).code
    except PyTritonBadParameterError as error:
        raise TritonModelException(str(error)) from None


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Returns the NumPy type for a datatype of a model's configuration: ``np.float32`` for ``"TYPE_FP32"``.

    Raises:
        TritonModelException: No datatype has that name, or it is BF16 and ml_dtypes is not installed.
    """
    if triton_type_string not in _BY_CONFIG_NAME:
        raise DatatypeError(
            f"{triton_type_string!r} is not a datatype of a model's configuration: those are "
            f"{', '.join(_BY_CONFIG_NAME)}"
        )
    try:
        return triton_to_numpy_type(triton_type_string)
    except TritonModelException as error:
        raise DatatypeError(str(error)) from None
