"""The layout of a message's data: where each array goes behind the header."""

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

_SMALL = 4096  # bytes; larger arrays are copied by NumPy, which releases the GIL
_BUILTIN = 1  # the buffer protocol may not know dtypes of other packages


class Layout:
    """Collects arrays and assigns each a place in the message's data."""

    __slots__ = ("_arrays", "_joined", "keep", "size")

    def __init__(self) -> None:
        self.size = 0
        self.keep: object = None
        """An object that is kept alive until the other side has read the message."""
        self._arrays: list[tuple[int, Array]] = []
        self._joined: list[tuple[int, tuple[int, ...], Sequence[Array]]] = []

    def add(self, arrays: Sequence[Array], shape: tuple[int, ...], code: int) -> TensorLocation:
        """Adds arrays of one dtype, which together make one tensor of ``shape``."""
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
            head: The message's header.
            arena: The arena to allocate in.

        Returns:
            The message's offset and size.

        Raises:
            ArenaError: The arena is full.
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
    """Copies an array into memory in C order."""
    if array.nbytes <= _SMALL and array.flags.c_contiguous and array.dtype.isbuiltin == _BUILTIN:
        memory[start : start + array.nbytes] = array  # a microsecond faster than through a new array
        return
    target: Array = np.ndarray(array.shape, array.dtype, memory, start)
    target[...] = array
