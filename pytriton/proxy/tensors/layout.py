"""Arrays on their way into shared memory: which goes where behind a message's head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pytriton.model_config.datatypes import BYTES_CODE
from pytriton.proxy.tensors.bytes_tensor import bytes_parts
from pytriton.proxy.transport.arena import Arena
from pytriton.proxy.types import Array
from pytriton.proxy.wire.encoding import TensorLocation, aligned

_SMALL = 4096  # bytes; of more than that, NumPy makes the copy while other threads run
_BUILTIN = 1  # dtypes of other packages may be unknown to the buffer protocol


class Layout:
    """Which array goes where, relative to the message's data."""

    __slots__ = ("_arrays", "_joined", "keep", "size")

    def __init__(self) -> None:
        self.size = 0
        self.keep: object = None
        """What is kept alive until the other side has read the message."""
        self._arrays: list[tuple[int, Array]] = []
        self._joined: list[tuple[int, tuple[int, ...], Sequence[Array]]] = []

    def add(self, arrays: Sequence[Array], shape: tuple[int, ...], code: int) -> TensorLocation:
        """Places arrays back to back as one tensor of ``shape``; several have one dtype."""
        offset = self.size
        if code == BYTES_CODE:
            lengths, contents = bytes_parts(arrays)
            self._arrays += ((offset, lengths), (offset + lengths.nbytes, contents))
            size = lengths.nbytes + contents.nbytes
        elif len(arrays) == 1:
            self._arrays.append((offset, arrays[0]))
            size = arrays[0].nbytes
        else:
            self._joined.append((offset, shape, arrays))
            size = math.prod(shape) * arrays[0].itemsize
        self.size += aligned(size)
        return TensorLocation(offset, size, shape)

    def write(self, head: bytes, arena: Arena) -> tuple[int, int]:
        """Copies a message and its arrays into a block of the arena.

        Args:
            head: The message without its data.
            arena: Where it goes.

        Returns:
            Offset and size of the message.

        Raises:
            ArenaError: There is no room.
        """
        size = len(head) + self.size
        offset = arena.allocate(size, self.keep)
        data = offset + len(head)
        memory: Any = arena.memory
        memory[offset:data] = head
        for position, shape, arrays in self._joined:
            whole: Array = np.ndarray(shape, arrays[0].dtype, memory, data + position)
            np.concatenate(arrays, out=whole)
        for position, array in self._arrays:
            put(array, memory, data + position)
        return offset, size


def put(array: Array, memory: Any, start: int) -> None:
    """Copies an array into memory, as one that is C-contiguous."""
    if array.nbytes <= _SMALL and array.flags.c_contiguous and array.dtype.isbuiltin == _BUILTIN:
        memory[start : start + array.nbytes] = array  # a microsecond less than an array of its own
        return
    target: Array = np.ndarray(array.shape, array.dtype, memory, start)
    target[...] = array
