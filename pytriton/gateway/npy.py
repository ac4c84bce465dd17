"""NumPy's format ``.npy`` as the body of requests and responses."""

from __future__ import annotations

import ast
import functools
import http
import io
import math
from typing import Any, Literal

import numpy as np

from pytriton.client.core.inputs import Array
from pytriton.gateway.errors import RequestError

MEDIA_TYPE = "application/x-npy"
_MAGIC = b"\x93NUMPY"
_MAX_RANK = 32
_MAX_HEADER = 10_000


def read(body: bytes) -> Array:
    """Reads an array, as a view of the body.

    Raises:
        RequestError: The body is no ``.npy``, is cut short, or has Python objects.
    """
    try:
        if not body.startswith(_MAGIC):
            raise ValueError("it does not begin like one")
        header_size = int.from_bytes(body[8:10], "little") if body[6] == 1 else int.from_bytes(body[8:12], "little")
        start = (10 if body[6] == 1 else 12) + header_size
        dtype, shape, order = _parsed(body[start - header_size : min(start, _MAX_HEADER)])
        if len(body) - start != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"shape {shape} of dtype {dtype} does not take {len(body) - start} bytes")
        array = np.frombuffer(body, dtype, offset=start)
        return array.reshape(shape, order=order)
    except (ValueError, TypeError, KeyError, IndexError, SyntaxError, MemoryError, RecursionError) as error:
        raise RequestError(http.HTTPStatus.BAD_REQUEST, f"The body is no valid .npy file: {error}.") from error


def write(array: Array) -> bytes:
    """Writes an array; bytes become fixed-width strings.

    Raises:
        RequestError: The array cannot be written.
    """
    if array.dtype == object:
        array = array.astype(np.bytes_)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    array = np.asarray(array, order="C")
    return b"".join((_header(array.dtype, array.shape), array.data))


@functools.lru_cache(maxsize=64)
def _parsed(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], Literal["C", "F"]]:
    fields: Any = ast.literal_eval(header.decode("latin1"))
    dtype, shape = np.dtype(fields["descr"]), tuple(fields["shape"])
    if dtype.hasobject or dtype.names is not None:
        raise ValueError(f"dtype {dtype} is not supported")
    if len(shape) > _MAX_RANK or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"its shape is {shape}")
    return dtype, shape, "F" if fields["fortran_order"] else "C"


@functools.lru_cache(maxsize=64)
def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, fields)
    return file.getvalue()
