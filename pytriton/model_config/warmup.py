"""The data of warm-up requests."""

from __future__ import annotations

import io
import math
import pathlib
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.common import ModelWarmup, WarmupInput
from pytriton.model_config.datatypes import BYTES_CODE

_NPY_MAGIC = b"\x93NUMPY"
_LENGTH = struct.Struct("<I")


def read_samples(data: WarmupInput, count: int, where: str) -> NDArray[Any]:
    """Reads the samples in the file of a warm-up's input.

    Args:
        data: The input.
        count: The maximum number of samples needed.
        where: How an error refers to the input.

    Returns:
        The first samples, one for each index of the first dimension.

    Raises:
        PyTritonBadParameterError: The file cannot be read, or does not hold a sample.
    """
    path = pathlib.Path(str(data.input_data_file))
    where = f"{where} comes from {str(path)!r}, which"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PyTritonBadParameterError(f"{where} is not a file that can be read; write the path of one.") from error
    if content.startswith(_NPY_MAGIC):
        samples = _from_npy(content, data, where)
    elif data.datatype.code == BYTES_CODE:
        samples = _from_elements(content, data, where)
    else:
        samples = _from_numbers(content, data, where)
    return samples[:count].copy()


def warmup_inputs(warmup: ModelWarmup, count: int, batching: bool) -> dict[str, NDArray[Any]]:
    """Creates the inputs of a warm-up.

    Args:
        warmup: The warm-up, whose files have been read.
        count: Number of samples; those of a file are repeated or truncated.
        batching: Whether the first dimension of each input is the batch.

    Returns:
        The inputs by name.
    """
    inputs = {name: _samples(data, count) for name, data in warmup.inputs.items()}
    return inputs if batching else {name: array[0, ...] for name, array in inputs.items()}


def _samples(data: WarmupInput, count: int) -> NDArray[Any]:
    if data.samples is not None:
        return np.take(data.samples, np.arange(count) % len(data.samples), axis=0)
    shape, dtype = (count, *data.shape), data.datatype.numpy_dtype
    if data.datatype.code == BYTES_CODE:
        return np.full(shape, b"", np.object_)
    if data.zero_data:
        return np.zeros(shape, dtype)
    random = np.random.default_rng()
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return random.random(shape).astype(dtype)


def _from_npy(content: bytes, data: WarmupInput, where: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise PyTritonBadParameterError(f"{where} cannot be loaded by NumPy: {error}") from error
    shape = tuple(data.shape)
    if array.shape == shape:
        array = array[None]
    if array.shape[1:] != shape or not len(array):
        raise PyTritonBadParameterError(
            f"{where} holds an array of shape {array.shape}; save one of shape {shape}, or several along a first "
            "dimension."
        )
    if data.datatype.code == BYTES_CODE:
        if array.dtype.kind == "U":
            array = np.char.encode(array, "utf-8")
        if array.dtype.kind == "S":
            return array.astype(np.object_)
    else:
        dtype = data.datatype.numpy_dtype
        if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize:  # NumPy saves ml_dtypes as void
            return array.view(dtype)
        if np.can_cast(array.dtype, dtype, "same_kind"):
            with np.errstate(over="ignore"):
                cast = array.astype(dtype)
            # Floating-point numbers may be rounded, but other values must not change.
            is_same = cast == array if dtype.kind in "iub" else np.isfinite(cast) == np.isfinite(array)
            if np.all(is_same):
                return cast
    raise PyTritonBadParameterError(f"{where} holds {array.dtype}; save {data.datatype.name}.")


def _from_numbers(content: bytes, data: WarmupInput, where: str) -> NDArray[Any]:
    wanted = math.prod(data.shape) * data.datatype.itemsize
    count = len(content) // wanted
    if count == 0:
        raise PyTritonBadParameterError(
            f"{where} has {len(content)} bytes, while {data.datatype.name} of shape {tuple(data.shape)} takes "
            f"{wanted}; write one whole sample into it."
        )
    return np.frombuffer(content, data.datatype.numpy_dtype, count * math.prod(data.shape)).reshape(count, *data.shape)


def _from_elements(content: bytes, data: WarmupInput, where: str) -> NDArray[Any]:
    elements, position = [], 0
    while position + _LENGTH.size <= len(content):
        [length] = _LENGTH.unpack_from(content, position)
        position += _LENGTH.size + length
        if position > len(content):
            break
        elements.append(content[position - length : position])
    wanted = math.prod(data.shape)
    count = len(elements) // wanted
    if count == 0:
        raise PyTritonBadParameterError(
            f"{where} has {len(elements)} elements, while shape {tuple(data.shape)} takes {wanted}; write each after "
            "its length in four bytes, or save the array with np.save."
        )
    array = np.empty(count * wanted, np.object_)
    array[:] = elements[: count * wanted]
    return array.reshape(count, *data.shape)
