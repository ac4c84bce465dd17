"""Tensors of a GPU: rows, DLPack, NumPy."""

from __future__ import annotations

import gc
import pickle

import hypothesis
import numpy as np
from gpu import library, to_gpu
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from pytriton.model_config.datatypes import DATATYPES
from pytriton.proxy.tensors.gpu_tensor import GpuTensor, as_gpu_tensor, from_capsule, is_on_gpu
from pytriton.proxy.tensors.layout import Layout
from pytriton.proxy.transport.arena import Arena
from pytriton.python_backend.tensor import Tensor

dtypes = st.sampled_from([each.numpy for each in DATATYPES if each.numpy is not None and each.numpy != np.object_])
arrays = dtypes.flatmap(lambda dtype: st_numpy.arrays(dtype, st_numpy.array_shapes(min_dims=1, max_dims=4, min_side=0)))


class Library:
    """A tensor of another library."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, *, stream):
        assert stream == 1
        return self.tensor.__dlpack__()

    flags = np.zeros(1).flags

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def same(tensor, array):
    return np.array_equal(tensor.numpy(), array, equal_nan=array.dtype.kind == "f") and tensor.dtype == array.dtype


@hypothesis.settings(deadline=None, max_examples=200, database=None)
@hypothesis.given(arrays, st.data())
def check(array, data):
    tensor = to_gpu(array)
    assert same(tensor, array)
    assert (tensor.ndim, tensor.nbytes, tensor.itemsize, len(tensor)) == (
        array.ndim,
        array.nbytes,
        array.itemsize,
        len(array),
    )
    start, stop = data.draw(st.integers(-9, 9)), data.draw(st.integers(-9, 9))
    assert same(tensor[start:stop], array[start:stop])
    if len(array):
        row = data.draw(st.integers(-len(array), len(array) - 1))
        assert same(tensor[row], array[row])
    assert same(tensor.reshape(-1) if array.size else tensor, array.reshape(-1) if array.size else array)
    assert np.array_equal(np.asarray(tensor), array, equal_nan=array.dtype.kind == "f")
    pickled = pickle.loads(pickle.dumps(tensor))
    assert type(pickled) is np.ndarray
    assert np.array_equal(pickled, array, equal_nan=array.dtype.kind == "f")
    # By a capsule there and back, whoever keeps what.
    assert same(from_capsule(tensor.__dlpack__()), array)
    kept = as_gpu_tensor(Library(tensor))
    named = Tensor.from_dlpack("x", Library(tensor))
    capsule = named.to_dlpack()
    del tensor
    gc.collect()
    assert same(kept, array)
    assert not named.is_cpu()
    assert named.shape() == list(array.shape)
    assert np.array_equal(named.as_numpy(), array, equal_nan=array.dtype.kind == "f")
    assert same(Tensor.from_dlpack("y", capsule)._array, array)


check()

arena = Arena(1 << 20)
layout = Layout()
halves = [to_gpu(np.full((1, 3), value, np.float32)) for value in (1, 2)]
layout.add(halves, (2, 3), 11)
offset, _ = layout.write(b"", arena)
assert np.ndarray((2, 3), np.float32, arena.memory, offset).tolist() == [[1] * 3, [2] * 3]
del halves, layout
gc.collect()
assert library.fake_cuda_memories() == 0

tensor = to_gpu(np.zeros((2, 3), np.float16), device=1)
assert repr(tensor) == "GpuTensor(shape=(2, 3), dtype=float16, device=1)"
assert tensor.__dlpack_device__() == (2, 1)
assert is_on_gpu(tensor)
assert not any(is_on_gpu(other) for other in (np.zeros(1), np.float32(1), "text", None))
interface = tensor.__cuda_array_interface__
assert (interface["shape"], interface["typestr"], interface["data"]) == ((2, 3), "<f2", (tensor.address, False))
for refused in (
    lambda: np.from_dlpack(tensor),
    lambda: tensor.__dlpack__(copy=True),
    lambda: tensor.__dlpack__(dl_device=(1, 0)),
):
    try:
        refused()
    except (BufferError, RuntimeError):
        continue
    raise AssertionError("NumPy takes no tensors of GPUs")
capsule = tensor.__dlpack__()
taken = from_capsule(capsule)
for used in (from_capsule, np.from_dlpack):
    try:
        used(capsule)
    except (ValueError, AttributeError):
        continue
    raise AssertionError("a capsule is used once")
del capsule, taken, tensor
gc.collect()
assert library.fake_cuda_memories() == 0
tensor = to_gpu(np.zeros((2, 3), np.float16), device=1)
for wrong in (lambda: tensor[::2], lambda: tensor[5], lambda: np.array(tensor, copy=False)):
    try:
        wrong()
    except (IndexError, ValueError):
        continue
    raise AssertionError("that cannot be")
assert isinstance(tensor[0:1], GpuTensor)
print("passed")
