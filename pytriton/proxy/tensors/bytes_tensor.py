"""Elements of BYTES tensors: in shared memory, all lengths and then all contents; in arrays, objects."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from pytriton.exceptions import PyTritonValidationError
from pytriton.proxy.types import Array, described
from pytriton.proxy.wire.encoding import LENGTH_SIZE


def bytes_array(buffer: Any, offset: int, shape: tuple[int, ...]) -> Array:
    """The elements that lie at ``offset`` of a buffer, as an array of bytes objects."""
    count = math.prod(shape)
    lengths = struct.unpack_from(f"<{count}I", buffer, offset)
    array = np.empty(count, np.object_)
    # Cut by struct, whose loop is in C; not by a format of the module's cache, for no two batches have the same.
    array[:] = struct.Struct("%ds" * count % lengths).unpack_from(buffer, offset + count * LENGTH_SIZE)
    return array.reshape(shape)


def bytes_parts(arrays: Sequence[Array]) -> tuple[Array, Array]:
    """Lengths and contents of the elements of arrays of bytes or strings, back to back.

    Raises:
        PyTritonValidationError: One holds something else.
    """
    items: list[Any] = list(itertools.chain.from_iterable(array.ravel().tolist() for array in arrays))
    try:
        contents = b"".join(items)
    except TypeError:
        items = [_to_bytes(item) for item in items]
        contents = b"".join(items)
    lengths = np.fromiter(map(len, items), np.uint32, len(items))
    return lengths, np.frombuffer(contents, np.uint8)


def as_bytes(array: Array) -> Array:
    """An array of bytes or strings as one of bytes.

    Raises:
        PyTritonValidationError: It holds something else.
    """
    items = array.ravel().tolist()
    if all(type(item) is bytes for item in items):
        return array
    converted = np.empty(len(items), np.object_)
    converted[:] = [_to_bytes(item) for item in items]
    return converted.reshape(array.shape)


def _to_bytes(item: object) -> bytes:
    if isinstance(item, str):
        return item.encode("utf-8")
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    raise PyTritonValidationError(f"an output of bytes holds {item!r}, which is {described(item)}: use bytes or str")
