"""NumPy's format ``.npy`` as the body of requests and responses."""

from __future__ import annotations

import functools
import http
import io
import math
import re
from typing import Any, Literal

import numpy as np

from pytriton.client.core.inputs import Array
from pytriton.gateway.errors import RequestError

MEDIA_TYPE = "application/x-npy"
_MAGIC = b"\x93NUMPY"
_MAX_RANK = 32
_MAX_HEADER = 10_000
_MAX_SIZE = 1 << 40  # elements of a shape: more than any body has
_MAX_SHOWN = 100  # characters of what was wrong
_VERSIONS = (1, 2, 3)
_NAMES = {"descr", "fortran_order", "shape"}
_DTYPE = re.compile(r"[<>|=]?[biufSUV]\d{1,9}")  # neither Python's objects nor records
_FIELD = re.compile(
    r"""\s*(["'])(?P<name>descr|fortran_order|shape)\1\s*:\s*"""
    r"""(?:(["'])(?P<text>[^"'\\]{1,40})\3|(?P<flag>True|False)|\((?P<sizes>[\d, ]{0,1000})\))\s*(?:,\s*)?}?"""
)
_LAST_CHARACTER = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)


def read(body: bytes) -> Array:
    """Reads an array, as a view of the body.

    Raises:
        RequestError: The body is not an ``.npy`` file, is truncated, or has Python objects.
    """
    try:
        if not body.startswith(_MAGIC):
            raise ValueError("it does not begin with NumPy's magic string")
        if body[6] not in _VERSIONS:
            raise ValueError(f"its version is {body[6]}")
        size_end = 10 if body[6] == 1 else 12
        header_size = int.from_bytes(body[8:size_end], "little")
        if header_size > _MAX_HEADER:
            raise ValueError(f"its header has {header_size} bytes, but the limit is {_MAX_HEADER}")
        start = size_end + header_size
        dtype, shape, order = _parsed(body[size_end:start])
        if len(body) - start != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"shape {shape} of dtype {dtype} does not have {len(body) - start} bytes")
        array = np.frombuffer(body, dtype, offset=start)
        if dtype.kind == "U":
            _check_characters(array)
        return array.reshape(shape, order=order)
    except (ValueError, TypeError, IndexError) as error:
        raise RequestError(http.HTTPStatus.BAD_REQUEST, f"The body is not a valid .npy file: {error}.") from error


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
    """Parses a header, a dictionary in Python's syntax, without evaluating what a client has sent."""
    text = header.decode("latin1").strip()
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError("its header is not a dictionary")
    fields: dict[str, str] = {}
    position = 1
    while found := _FIELD.match(text, position):
        fields[found["name"]] = found["text"] or found["flag"] or found["sizes"] or ""
        position = found.end()
    if position != len(text) or set(fields) != _NAMES:
        raise ValueError(
            "its header is not a dictionary with the dtype of numbers or text, 'fortran_order' and 'shape'"
        )
    shape = tuple(int(size) for size in fields["shape"].replace(",", " ").split())
    if len(shape) > _MAX_RANK or math.prod(max(size, 1) for size in shape) >= _MAX_SIZE:
        raise ValueError(f"its shape is {fields['shape'][:_MAX_SHOWN]}, which is too large")
    if not _DTYPE.fullmatch(fields["descr"]) or not np.dtype(fields["descr"]).itemsize:
        raise ValueError(f"dtype {fields['descr']!r} is not supported")
    return np.dtype(fields["descr"]), shape, "F" if fields["fortran_order"] == "True" else "C"


def _check_characters(array: Array) -> None:
    """Checks that an array of text is valid: NumPy accepts any number as a character."""
    codes = array.view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
    wrong = (codes > _LAST_CHARACTER) | ((codes >= _SURROGATES[0]) & (codes <= _SURROGATES[1]))
    if wrong.any():
        raise ValueError(f"it has text with the invalid character {int(codes[wrong][0]):#x}")


@functools.lru_cache(maxsize=64)
def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, fields)
    return file.getvalue()
