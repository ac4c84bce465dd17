"""Tensors of other libraries in the memory of the host, and NumPy's own masked arrays."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from pytriton.model_config.datatypes import datatype_by_name
from pytriton.proxy.types import Array

ARRAY_INTERFACES = ("__dlpack__", "__array__", "__array_interface__")
"""What objects have that NumPy can convert; an image of Pillow 13 has the last one only."""


def host_array(value: Any, *, keeps_bfloat16: bool) -> Array:
    """Converts a tensor, or any object with one of `ARRAY_INTERFACES` or a buffer, to an array.

    Args:
        value: The tensor; one of PyTorch may require a gradient.
        keeps_bfloat16: Whether to keep PyTorch's bfloat16, for which NumPy needs ml_dtypes, instead of converting it to
            float32.

    Raises:
        PyTritonBadParameterError: ml_dtypes is needed, and not installed.
        Exception: The tensor's library or NumPy refuses, such as for a tensor on another device.
    """
    torch = torch_of(value)
    if torch is not None:
        value = value.detach()
        if value.dtype is torch.bfloat16:
            if keeps_bfloat16:
                return np.from_dlpack(value.view(torch.int16)).view(datatype_by_name("BF16").numpy_dtype)
            value = value.float()
    if hasattr(value, "__dlpack__") and not isinstance(value, (np.ndarray, np.generic)):
        try:
            return np.from_dlpack(value)
        except Exception:  # each library raises others, for devices and for dtypes that DLPack or NumPy lacks
            if not hasattr(value, "__array__"):
                raise
    return np.asarray(value)


def has_masked_elements(value: Any) -> bool:
    """Returns whether a value is a masked array, and some of its elements are masked: a tensor has no mask."""
    masked = sys.modules.get("numpy.ma")  # which NumPy imports when it is first used
    array_type = getattr(masked, "MaskedArray", None)  # another thread may be importing it
    return array_type is not None and isinstance(value, array_type) and bool(np.ma.is_masked(value))


def torch_of(value: Any) -> Any:
    """Returns the module of PyTorch if a value is one of its tensors, and None otherwise."""
    torch = sys.modules.get("torch")
    tensor_type = getattr(torch, "Tensor", None)  # another thread may be importing it
    return torch if tensor_type is not None and isinstance(value, tensor_type) else None


def cast_call(value: Any, dtype: np.dtype[Any]) -> str:
    """Returns the code that converts a value to a dtype, such as ``.astype('int32')``, for error messages."""
    if torch_of(value) is not None:
        return f".to(torch.{dtype.name})"
    return f".astype({dtype.name!r})" if hasattr(value, "astype") else f"np.asarray(value, {dtype.name!r})"
