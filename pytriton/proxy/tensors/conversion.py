"""Conversion of outputs to arrays of the declared dtype.

Python's numbers keep their values, except floats, which are rounded to the declared precision. Arrays of another dtype
are converted, as in nvidia-pytriton, but with a warning if that changes values; with ``strict=True``, whatever has
another dtype is refused, as there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config.datatypes import BYTES_CODE, BYTES_KINDS
from pytriton.proxy.cuda.driver import CudaError
from pytriton.proxy.tensors.bytes_tensor import BINARY, object_array
from pytriton.proxy.tensors.gpu_tensor import as_gpu_tensor, is_on_device, is_on_gpu
from pytriton.proxy.tensors.host_tensor import ARRAY_INTERFACES, cast_call, has_masked_elements, host_array
from pytriton.proxy.tensors.signature import OutputSignature, Signature
from pytriton.proxy.types import Array, described

_INTEGERS = "iu"
_FLOATS = "fV"  # V is a dtype of ml_dtypes
_NUMBERS = "biuf"
_BFLOAT16 = "bfloat16"
_FLOATS_OF_ML_DTYPES = (_BFLOAT16, "float")  # beginnings of names, such as float8_e4m3fn
_BFLOAT16_PRECISION = 8  # bits
_COLUMN_RANK = 2
# The exceptions of libraries for tensors on other devices, or of dtypes that NumPy lacks.
_NOT_CONVERTED = (CudaError, BufferError, RuntimeError, TypeError, ValueError, AttributeError, OverflowError)


def conform(value: object, output: OutputSignature, signature: Signature) -> Array:
    """Returns an output as an array of the declared dtype.

    An array that has other dimensions than the declared ones keeps them, unless the model is strict.

    Args:
        value: An array, a number, text, a list of these, or a tensor of another library; a tensor on a GPU stays there,
            as a `GpuTensor`, if it needs no conversion.
        output: The declaration of the output.
        signature: The declaration of the model.

    Raises:
        PyTritonValidationError: The conversion would change a value, the shape does not match, or the model is strict
            and the value has another dtype.
    """
    is_array = isinstance(value, np.ndarray)
    if has_masked_elements(value):
        _check_masked(output, signature)
    array: Array = np.asarray(value) if is_array else _as_array(value, output, signature)
    if array.dtype != output.dtype and not (output.code == BYTES_CODE and array.dtype.kind in BYTES_KINDS):
        array = _cast(value, array, output, signature)
    if not array.ndim and output.shape == (1,):
        array = array.reshape(1)
    _check_shape(array, output, signature, is_array=is_array)
    return array if array.ndim else array.reshape(1)  # Triton has no tensors without dimensions


def declared(output: OutputSignature, signature: Signature) -> str:
    """Describes a declaration for error messages, like ``float32 (batch, -1)``."""
    dims = ["batch", *map(str, output.shape[1:])] if signature.batching else [*map(str, output.shape)]
    dtype = "bytes" if output.code == BYTES_CODE else str(output.dtype)
    return f"{dtype} ({', '.join(dims)}{',' if len(dims) == 1 else ''})"


def _as_array(value: Any, output: OutputSignature, signature: Signature) -> Array:
    if value is None:
        raise _refusal("is None", "return an array", output, signature)
    try:
        if output.code == BYTES_CODE and isinstance(value, (str, *BINARY, list, tuple)):
            return object_array(value)
        if is_on_gpu(value):
            return _from_gpu(value, output)
        if isinstance(value, (int, float, list, tuple, memoryview)) or any(
            hasattr(value, name) for name in ARRAY_INTERFACES
        ):
            return host_array(value, keeps_bfloat16=_keeps_bfloat16(output))
    except _NOT_CONVERTED as error:
        remedy = "give lists of one length" if isinstance(value, (list, tuple)) else "return an array"
        if is_on_device(value):
            remedy = "return an array; call .cpu() on a tensor of another device"
        problem = f"is {described(value)} that NumPy cannot convert ({error})"
        raise _refusal(problem, remedy, output, signature) from error
    remedy = f"return an array, or lists of {'text' if output.code == BYTES_CODE else 'numbers'}"
    if isinstance(value, Mapping):
        remedy = "return one dictionary with an array for each output"
    raise _refusal(f"is {described(value)}", remedy, output, signature)


def _from_gpu(value: Any, output: OutputSignature) -> Array:
    """Returns a tensor on a GPU as a `GpuTensor`, which is copied later, or as an array if it needs conversion."""
    tensor = as_gpu_tensor(value, keeps_bfloat16=_keeps_bfloat16(output))
    return cast(Array, tensor) if tensor.dtype == output.dtype and tensor.ndim else tensor.numpy()


def _keeps_bfloat16(output: OutputSignature) -> bool:
    return output.dtype.name == _BFLOAT16


def _cast(value: object, array: Array, output: OutputSignature, signature: Signature) -> Array:
    """Converts an array to the declared dtype; ``value`` is what the callable returned."""
    is_array = isinstance(value, np.ndarray)
    source, target = array.dtype, output.dtype
    if not (_is_number(source) and _is_number(target)):
        converted = _across_kinds(array, output) if is_array and not signature.strict else None
        if converted is not None:
            wanted = "text" if output.code == BYTES_CODE else target
            signature.warn(f"output {output.name!r} has dtype {source}, which is converted to {wanted}, as declared.")
            return converted
        raise _refusal(f"has dtype {source}", _dtype_remedy(source, target), output, signature)
    if signature.strict and hasattr(value, "dtype") and source.newbyteorder("=") != target:
        remedy = f"declare {source}, or convert the output with {cast_call(value, target)}"
        raise _refusal(f"has dtype {source}", remedy, output, signature)
    with np.errstate(all="ignore"):
        changed = array.astype(target)
    if is_array and signature.has_warned:
        return changed
    kept = _kept(array, changed)
    if kept.all():
        return changed
    example = array[~kept].flat[0]
    if is_array:
        signature.warn(
            f"output {output.name!r} has dtype {source} and values such as {example}, which are converted to {target}, "
            f"as declared. Convert it with .astype({target.name!r}), or declare {source}."
        )
        return changed
    if source.kind in _FLOATS and target.kind in _FLOATS and not is_array:
        lost = np.isfinite(array) & ~np.isfinite(changed)
        if not lost.any():
            return changed
        example = array[lost].flat[0]
    remedy = f"declare {source}, or convert the output with {cast_call(value, target)}"
    raise _refusal(
        f"has dtype {source} and the value {example}, which {target} cannot represent", remedy, output, signature
    )


def _across_kinds(array: Array, output: OutputSignature) -> Array | None:
    """Converts numbers to text, or text to numbers, as nvidia-pytriton does; None if NumPy cannot."""
    is_text = output.code == BYTES_CODE
    if not (_is_number(array.dtype) if is_text else array.dtype.kind in "SU"):
        return None
    try:
        return array.astype(np.object_).astype(np.str_) if is_text else array.astype(output.dtype)
    except (TypeError, ValueError, OverflowError):
        return None


def _dtype_remedy(source: np.dtype[Any], target: np.dtype[Any]) -> str:
    """Returns the remedy for a dtype of another kind than the declared one."""
    remedy = "return an array of the declared dtype"
    if source.kind == "O":
        return f"{remedy}, as from .astype({target.name!r})"
    if source.kind == "c":
        return f"{remedy}, such as .real"
    if source.kind in BYTES_KINDS:
        return f"{remedy}, or declare bytes"
    return remedy if not _is_number(source) else f"{remedy}, or declare {source}"


def _is_number(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in _NUMBERS or dtype.name.startswith(_FLOATS_OF_ML_DTYPES)


def _kept(array: Array, changed: Array) -> Array:
    """Returns a mask of the values that another dtype can represent."""
    source, target = array.dtype, changed.dtype
    if source.kind == "b":
        return np.ones(array.shape, bool)
    if target.kind == "b":
        return cast(Array, (array == 0) | (array == 1))
    if target.kind in _INTEGERS:
        # Compared without conversion: in a common dtype, large numbers would be rounded.
        info = np.iinfo(target)
        with np.errstate(invalid="ignore"):
            whole = np.trunc(array) == array
        return cast(Array, whole & _is_between(array, int(info.min), int(info.max)))
    if source.kind in _INTEGERS:
        most = 1 << _precision(target)
        return _is_between(array, -most, most)
    with np.errstate(all="ignore"):
        return cast(Array, (changed.astype(source) == array) | np.isnan(array))


def _is_between(array: Array, least: int, most: int) -> Array:
    """Returns which values are between two integers that the array's dtype may not represent."""
    if array.dtype.kind in _INTEGERS:
        info = np.iinfo(array.dtype)
        least, most = max(least, int(info.min)), min(most, int(info.max))
        return (array >= least) & (array <= most)
    # The largest integer is one less than a power of two, to which floating-point numbers round it.
    wide = array.astype(np.float64)
    return (wide >= float(least)) & (wide < float(most + 1))


def _precision(dtype: np.dtype[Any]) -> int:
    """Returns the number of bits of an integer that a floating-point dtype preserves."""
    return _BFLOAT16_PRECISION if dtype.name == _BFLOAT16 else int(np.finfo(dtype).nmant) + 1


def _check_masked(output: OutputSignature, signature: Signature) -> None:
    """Refuses an array with masked elements, or warns that their hidden values are sent."""
    problem, remedy = "has masked elements", "replace them, as array.filled(0) does"
    if signature.strict:
        raise _refusal(problem, remedy, output, signature)
    signature.warn(f"output {output.name!r} {problem}, whose hidden values are sent: {remedy}.")


def _check_shape(array: Array, output: OutputSignature, signature: Signature, *, is_array: bool) -> None:
    if array.ndim != output.rank:
        is_sent = is_array and array.ndim > 0 and not signature.strict
        if is_sent and signature.has_warned:
            return
        remedy = "return that many dimensions, or declare others"
        if signature.batching and array.ndim == 1 and output.shape[1:] == (1,):
            remedy = "return array.reshape(-1, 1), or declare shape=()"
        elif signature.batching and array.ndim == 1 and output.rank == _COLUMN_RANK:
            remedy = "return that many dimensions, as array.reshape(-1, 1) has, or declare others"
        if is_sent:
            problem = f"has shape {array.shape}, but {declared(output, signature)} was declared: {remedy}"
            signature.warn(f"output {output.name!r} {problem}. It is sent with the shape that it has.")
            return
        raise _refusal(f"has shape {array.shape}", remedy, output, signature)
    if signature.strict and any(wanted not in (-1, dim) for wanted, dim in zip(output.shape, array.shape)):
        raise _refusal(f"has shape {array.shape}", "return that shape, or declare -1 for any size", output, signature)


def _refusal(problem: str, remedy: str, output: OutputSignature, signature: Signature) -> PyTritonValidationError:
    return PyTritonValidationError(
        f"output {output.name!r} {problem}, but {declared(output, signature)} was declared: {remedy}"
    )
