"""The codec of BYTES tensors: converts between arrays of objects and bytes in memory.

Batches and results have all lengths first, then all contents. In Triton's own layout, each length precedes its element.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pytriton.exceptions import PyTritonValidationError
from pytriton.proxy.types import Array, described
from pytriton.proxy.wire.encoding import LENGTH_SIZE

_LENGTH = struct.Struct("<I")
_BYTES = frozenset({bytes})
BUFFERS = (bytearray, memoryview)
"""Types with a buffer, which are sent as bytes; NumPy would make arrays of numbers of them."""
BINARY = (bytes, *BUFFERS)
"""Types of elements that are sent as they are."""


class BytesElementError(PyTritonValidationError):
    """An element of a BYTES tensor is neither bytes nor a string, or a string that UTF-8 cannot encode."""

    def of(self, tensor: str) -> PyTritonValidationError:
        """Returns the error that names the tensor, such as ``output 'y'``."""
        return PyTritonValidationError(f"{tensor} {self}")


def object_array(value: Any) -> Array:
    """Converts text, bytes, or nested lists of these to an array of objects, and keeps whatever else is among them.

    Raises:
        ValueError: The lists have different lengths.
    """
    array = np.array(value, np.object_)
    leaf, depth = value, 0
    while isinstance(leaf, (list, tuple)) and leaf and depth < array.ndim:
        leaf, depth = leaf[0], depth + 1
    if isinstance(leaf, (list, tuple)) and depth == array.ndim:
        raise ValueError("the lists have different lengths")
    if isinstance(leaf, BUFFERS):
        array = np.array(_without_buffers(value, depth), np.object_)
    return array


def _without_buffers(value: Any, depth: int) -> Any:
    """Converts the elements of lists of some depth to bytes, if they have a buffer."""
    if depth:
        return [_without_buffers(each, depth - 1) for each in value]
    return bytes(value) if isinstance(value, BUFFERS) else value


def bytes_array(buffer: Any, offset: int, shape: tuple[int, ...]) -> Array:
    """Decodes the elements at ``offset`` of a buffer into an array of bytes objects."""
    count = math.prod(shape)
    if count == 1:
        return _single_element(buffer, offset).reshape(shape)
    lengths = struct.unpack_from(f"<{count}I", buffer, offset)
    array = np.empty(count, np.object_)
    # `struct` loops in C. Its module-level cache is bypassed, since formats rarely repeat.
    array[:] = struct.Struct("%ds" * count % lengths).unpack_from(buffer, offset + count * LENGTH_SIZE)
    return array.reshape(shape)


def _single_element(buffer: Any, offset: int) -> Array:
    [length] = _LENGTH.unpack_from(buffer, offset)
    start = offset + LENGTH_SIZE
    array = np.empty(1, np.object_)
    array[0] = element = bytes(memoryview(buffer)[start : start + length])
    if len(element) != length:
        raise struct.error("the element is cut short")  # like for several elements
    return array


def bytes_parts(arrays: Sequence[Array]) -> tuple[Array, Array]:
    """Returns the lengths and the joined contents of the elements of arrays of bytes or strings.

    Raises:
        BytesElementError: An element is neither bytes nor a string, or a string that UTF-8 cannot encode.
    """
    items: list[Any] = list(itertools.chain.from_iterable(array.ravel().tolist() for array in arrays))
    if not _are_bytes(items):  # `join` would take the buffer of NumPy's strings, which is UTF-32
        items = [_to_bytes(item) for item in items]
    lengths = np.fromiter(map(len, items), np.uint32, len(items))
    return lengths, np.frombuffer(b"".join(items), np.uint8)


def encode_elements(items: Iterable[bytes]) -> bytes:
    """Encodes elements in Triton's layout: each length before its element."""
    parts = list(items)
    return b"".join(itertools.chain.from_iterable(zip(map(_LENGTH.pack, map(len, parts)), parts)))


def decode_elements(data: bytes) -> list[bytes]:
    """Decodes elements in Triton's layout.

    Raises:
        ValueError: The data ends within an element; the message gives the position.
    """
    items: list[bytes] = []
    append, length_at = items.append, _LENGTH.unpack_from  # looked up once, for millions of elements
    size, prefix, position = len(data), LENGTH_SIZE, 0
    while position < size:
        start = position + prefix
        end = start + length_at(data, position)[0] if start <= size else start
        if end > size:
            raise ValueError(f"{size} bytes end within an element, the one at byte {position}")
        append(data[start:end])
        position = end
    return items


def as_bytes(array: Array) -> Array:
    """Converts an array of bytes or strings to an array of bytes.

    Raises:
        BytesElementError: An element is neither bytes nor a string, or a string that UTF-8 cannot encode.
    """
    items = array.ravel().tolist()
    if _are_bytes(items):
        return array
    converted = np.empty(len(items), np.object_)
    converted[:] = [_to_bytes(item) for item in items]
    return converted.reshape(array.shape)


def _are_bytes(items: list[Any]) -> bool:
    return _BYTES.issuperset(map(type, items))


def _to_bytes(item: object) -> bytes:
    if isinstance(item, str):
        try:
            return item.encode("utf-8")
        except UnicodeEncodeError as error:
            raise BytesElementError(
                f"contains {item!r:.100}, which UTF-8 cannot encode: use bytes, or text without surrogates"
            ) from error
    if isinstance(item, BINARY):
        return bytes(item)
    raise BytesElementError(f"contains {item!r:.100}, which is {described(item)}: use bytes or str")
