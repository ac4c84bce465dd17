"""Arrays on their way into shared memory: which goes where behind a message's head."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config.datatypes import BYTES_CODE
from pytriton.proxy.arena import Arena
from pytriton.proxy.message import MessageWriter, Tensor, aligned
from pytriton.proxy.types import Array, described

_SMALL = 4096  # bytes; of more than that, NumPy makes the copy while other threads run
_BUILTIN = 1  # dtypes of other packages may be unknown to the buffer protocol


class Layout:
    """Which array goes where, relative to the message's data."""

    __slots__ = ("arrays", "size")

    def __init__(self) -> None:
        self.size = 0
        self.arrays: list[tuple[int, Array]] = []

    def add(self, arrays: Sequence[Array], shape: tuple[int, ...], code: int) -> Tensor:
        """Places arrays back to back as one tensor of ``shape``."""
        offset = self.size
        if code == BYTES_CODE:
            lengths, contents = _bytes_parts(arrays)
            self.arrays += ((offset, lengths), (offset + lengths.nbytes, contents))
            size = lengths.nbytes + contents.nbytes
        else:
            size = 0
            for array in arrays:
                self.arrays.append((offset + size, array))
                size += array.nbytes
        self.size += aligned(size)
        return Tensor(offset, size, shape)

    def write(self, head: MessageWriter, arena: Arena) -> tuple[int, int]:
        """Copies a message and its arrays into a block of the arena.

        Returns:
            Offset and size of the message.

        Raises:
            ArenaError: There is no room.
        """
        head_size = head.head_size()
        size = head_size + self.size
        offset = arena.allocate(size)
        head.write_to(arena.memory, offset)
        data = offset + head_size
        memory = arena.memory
        for position, array in self.arrays:
            start = data + position
            if array.nbytes <= _SMALL and array.flags.c_contiguous and array.dtype.isbuiltin == _BUILTIN:
                memory[start : start + array.nbytes] = cast(Any, array)  # a microsecond less than an array of its own
                continue
            target: Array = np.ndarray(array.shape, array.dtype, cast(Any, memory), start)
            target[...] = array
        return offset, size


def _bytes_parts(arrays: Sequence[Array]) -> tuple[Array, Array]:
    """Lengths and contents of the elements of arrays of bytes or strings."""
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
