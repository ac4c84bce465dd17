"""NumPy's format ``.npy`` as the body of requests and responses."""

from __future__ import annotations

import ast
import http
import io
import math
from typing import Any

import numpy as np

from pytriton.client.core.inputs import Array
from pytriton.gateway.errors import RequestError

MEDIA_TYPE = "application/x-npy"
_MAGIC = b"\x93NUMPY"
_MAX_RANK = 32


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
        header: Any = ast.literal_eval(body[start - header_size : min(start, 10_000)].decode("latin1"))
        dtype, shape = np.dtype(header["descr"]), tuple(header["shape"])
        if dtype.hasobject or dtype.names is not None:
            raise ValueError(f"dtype {dtype} is not supported")
        if len(shape) > _MAX_RANK or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"its shape is {shape}")
        if len(body) - start != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"shape {shape} of dtype {dtype} does not take {len(body) - start} bytes")
        array = np.frombuffer(body, dtype, offset=start)
        return array.reshape(shape, order="F" if header["fortran_order"] else "C")
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
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()
