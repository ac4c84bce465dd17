"""What the programs share: tensors of the stand-in for a GPU."""

from __future__ import annotations

import ctypes
import time

import numpy as np

from pytriton.proxy.cuda.driver import CudaError, Memory, context, start_copy, wait
from pytriton.proxy.tensors.gpu_tensor import GpuTensor

library = ctypes.CDLL("libcuda.so.1")
library.fake_cuda_locked.argtypes = (ctypes.c_uint64, ctypes.c_size_t)


def address_of(array):
    return array.__array_interface__["data"][0]


def memory(size, device=0):
    """Memory of the GPU that cannot be shared, as a library allocates it."""
    try:
        return Memory(size, device)
    except CudaError:
        made = Memory.__new__(Memory)
        made.size, made.device, address = size, device, ctypes.c_uint64()
        with context(device):
            assert library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
        made.address = address.value
        return made


def to_gpu(array, device=0):
    """Copies an array to the GPU."""
    array = np.ascontiguousarray(array)
    owner = memory(max(array.nbytes, 1), device)
    with context(device):
        start_copy(owner.address, address_of(array), array.nbytes)
        wait()
    return GpuTensor(owner.address, device, array.shape, array.dtype, owner)


def wait_until_freed(memories):
    """Waits until there are no more memories than these: threads of connections end after the server."""
    deadline = time.monotonic() + 10
    while library.fake_cuda_memories() != memories:
        assert time.monotonic() < deadline, f"{library.fake_cuda_memories()} memories instead of {memories}"
        time.sleep(0.001)
