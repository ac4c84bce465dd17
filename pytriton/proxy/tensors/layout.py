"""The layout of a message's data: the position of each array after the header."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pytriton.model_config.datatypes import BYTES_CODE
from pytriton.proxy.cuda.driver import CudaError, context, start_copy, wait
from pytriton.proxy.tensors.bytes_tensor import bytes_parts
from pytriton.proxy.tensors.gpu_tensor import GpuTensor
from pytriton.proxy.transport.arena import Arena
from pytriton.proxy.transport.device_arena import DeviceArena
from pytriton.proxy.types import Array
from pytriton.proxy.wire.encoding import DEVICE_LOCATION_SIZE, DeviceLocation, TensorLocation, aligned

_SMALL = 4096  # bytes; NumPy copies larger arrays, and releases the GIL
_BUILTIN = 1  # the buffer protocol may not support dtypes of other packages


class Layout:
    """Collects arrays and assigns each a position in the message's data.

    Args:
        devices: Where tensors on GPUs go; by default, they are copied to memory.
    """

    __slots__ = ("_arrays", "_devices", "_joined", "_kept", "size")

    def __init__(self, devices: DeviceArena | None = None) -> None:
        self.size = 0
        self._devices = devices
        self._kept: list[object] = []
        self._arrays: list[tuple[int, Array]] = []
        self._joined: list[tuple[int, tuple[int, ...], Sequence[Array]]] = []

    def add(self, arrays: Sequence[Array], shape: tuple[int, ...], code: int) -> TensorLocation:
        """Adds arrays of one dtype, which together form one tensor of ``shape``."""
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

    def keep(self, kept: object) -> None:
        """Keeps an object alive until the other side has read the message."""
        self._kept.append(kept)

    def add_on_device(self, tensors: Sequence[Any], shape: tuple[int, ...]) -> TensorLocation | None:
        """Adds tensors that together form one tensor of ``shape``, if they are on one GPU and can stay there."""
        devices = {tensor.device if type(tensor) is GpuTensor else None for tensor in tensors}
        if self._devices is None or len(devices) > 1 or None in devices:
            return None
        size = sum(tensor.nbytes for tensor in tensors)
        try:
            block = self._devices.allocate(size, tensors[0].device)
            with context(tensors[0].device):
                target = block.memory.address
                try:
                    for tensor in tensors:
                        start_copy(target, tensor.address, tensor.nbytes)
                        target += tensor.nbytes
                finally:
                    wait()
        except CudaError as error:
            self._devices.warn(error)
            return None
        self.keep(block)
        location = DeviceLocation(block.memory.handle, block.memory.gpu, 0)
        offset = self.size
        self._arrays.append((offset, np.frombuffer(location.to_bytes(), np.uint8)))
        self.size += aligned(DEVICE_LOCATION_SIZE)
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
            CudaError: A tensor on a GPU cannot be read.
        """
        size = len(head) + self.size
        offset = arena.allocate(size, self._kept)
        data = offset + len(head)
        memory: Any = arena.memory
        memory[offset:data] = head
        try:
            for position, shape, arrays in self._joined:
                whole: Array = np.ndarray(shape, arrays[0].dtype, memory, data + position)
                np.concatenate(arrays, out=whole)
            for position, array in self._arrays:
                put(array, memory, data + position)
        except BaseException:  # work on a GPU may fail only now
            arena.discard(offset)
            raise
        return offset, size


def put(array: Array | GpuTensor, memory: Any, start: int) -> None:
    """Copies an array, or a tensor on a GPU, into memory in C order."""
    if isinstance(array, GpuTensor):
        array.copy_into(np.ndarray(array.shape, array.dtype, memory, start))
        return
    if array.nbytes <= _SMALL and array.flags.c_contiguous and array.dtype.isbuiltin == _BUILTIN:
        memory[start : start + array.nbytes] = array  # a microsecond faster than through a new array
        return
    target: Array = np.ndarray(array.shape, array.dtype, memory, start)
    target[...] = array
