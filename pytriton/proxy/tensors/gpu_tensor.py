"""Tensors in the memory of a GPU."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from pytriton.model_config.datatypes import DTYPE_BY_CODE
from pytriton.proxy.cuda.driver import CudaError, PeerMemory, context, finish, start_copy, wait
from pytriton.proxy.tensors.host_tensor import torch_of
from pytriton.proxy.transport.arena import Lease
from pytriton.proxy.types import Array

_CPU = 1  # kDLCPU
_CUDA = 2  # kDLCUDA
_MANAGED = 13  # kDLCUDAManaged
_LEGACY_STREAM = 1  # in DLPack's numbering
BFLOAT = 4
"""``kDLBfloat``."""

_BF16_CODE = 14
_KINDS = {"i": 0, "u": 1, "f": 2, "b": 6}  # DLPack's codes by NumPy's kinds
_NAME = b"dltensor"
_USED_NAME = b"used_dltensor"

_api = ctypes.PyDLL(None)  # not `ctypes.pythonapi`, whose prototypes other packages may change
_pointer_of = _api.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)
_set_name = _api.PyCapsule_SetName
_set_name.argtypes = (ctypes.py_object, ctypes.c_char_p)


class DLTensor(ctypes.Structure):
    """``DLTensor`` of DLPack, which is also the start of its ``DLManagedTensor``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (
        ("tensor", DLTensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    )


class _Peer:
    """Keeps a tensor of another process alive.

    When this object is deleted, that process may overwrite the tensor; so the destructor first waits for this process's
    work on the GPU.
    """

    def __init__(self, lease: Lease, memory: PeerMemory) -> None:
        self._lease = lease
        self._memory = memory

    def __del__(self) -> None:
        try:
            finish(self._memory.device)
        except Exception:  # the GPU has failed, or the interpreter is exiting
            return


class _Consumed:
    """A tensor of a DLPack capsule, deleted with this object."""

    def __init__(self, capsule: Any) -> None:
        self.managed = _DLManagedTensor.from_address(_pointer_of(capsule, _NAME))
        _set_name(capsule, _USED_NAME)

    def __del__(self) -> None:
        managed = getattr(self, "managed", None)
        if managed is not None and managed.deleter:
            managed.deleter(ctypes.addressof(managed))


class _Memory:
    """Presents GPU memory to NumPy, which does not access it."""

    def __init__(self, tensor: GpuTensor) -> None:
        self._tensor = tensor
        self.__array_interface__ = {
            "data": (tensor.address, False),
            "shape": tensor.shape,
            "typestr": f"<u{tensor.itemsize}",
            "version": 3,
        }


class GpuTensor:
    """A tensor in the memory of a GPU, in C order.

    With ``ModelConfig(gpu_tensors=True)``, inputs on a GPU have this type. Libraries import it without a copy:
    ``torch.from_dlpack(tensor)``, ``cupy.from_dlpack(tensor)``, ``jax.dlpack.from_dlpack(tensor)``. Like an input in
    memory, it is valid for as long as anything refers to it. ``np.asarray(tensor)`` copies it to memory.

    Attributes:
        address: Its address.
        device: The number of the GPU.
        shape: The dimensions.
        dtype: The type of its elements.

    Examples:
        >>> def infer(image):  # doctest: +SKIP
        ...     return {"scores": net(torch.from_dlpack(image).to("cuda"))}
    """

    __slots__ = ("_owner", "address", "device", "dtype", "shape")

    def __init__(
        self, address: int, device: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object = None
    ) -> None:
        """Describes the tensor; ``owner`` keeps its memory alive."""
        self.address = address
        self.device = device
        self.shape = shape
        self.dtype = dtype
        self._owner = owner

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """The size of an element in bytes."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The size of the tensor in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: int | slice) -> GpuTensor:
        """Returns a row, or consecutive rows, without a copy."""
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step != 1:
                raise IndexError("only consecutive rows of a GpuTensor can be selected: use torch.from_dlpack(tensor)")
            shape = (max(stop - start, 0), *self.shape[1:])
        else:
            start, shape = range(len(self))[rows], self.shape[1:]
        row_size = math.prod(self.shape[1:]) * self.dtype.itemsize
        return GpuTensor(self.address + start * row_size, self.device, shape, self.dtype, self._owner)

    def reshape(self, *shape: int) -> GpuTensor:
        """Returns the same elements with other dimensions, without a copy."""
        found = np.broadcast_to(np.empty((), np.bool_), self.shape).reshape(*shape).shape
        return GpuTensor(self.address, self.device, found, self.dtype, self._owner)

    def numpy(self) -> Array:
        """Returns a copy in memory.

        Raises:
            CudaError: The GPU cannot be read.
        """
        array: Array = np.empty(self.shape, self.dtype)
        self.copy_into(array)
        return array

    def copy_into(self, target: Array) -> None:
        """Copies it into an array of the same size, in C order.

        Raises:
            CudaError: The GPU cannot be read.
        """
        with context(self.device):
            start_copy(target.__array_interface__["data"][0], self.address, self.nbytes)
            wait()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Returns a copy in memory, for NumPy."""
        if copy is False:
            raise ValueError("a tensor on a GPU can only be converted to an array by a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __reduce__(self) -> Any:
        """Pickles the tensor as an array in memory."""
        return np.asarray, (self.numpy(),)

    def __dlpack__(self, *, dl_device: tuple[int, int] | None = None, copy: bool | None = None, **_: Any) -> Any:
        """Returns a DLPack capsule that shares the memory, whose contents have been written.

        Raises:
            BufferError: Another device or a copy is requested.
        """
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("a GpuTensor is shared where it is: convert it with np.asarray, or copy it there")
        if isinstance(self._owner, _Consumed):  # its library may still be writing it
            finish(self.device)
        return _capsule_of(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, self.device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The interface of Numba and CuPy."""
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "version": 3,
        }

    def __repr__(self) -> str:
        return f"GpuTensor(shape={self.shape}, dtype={self.dtype}, device={self.device})"


def peer_tensor(lease: Lease, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuTensor:
    """Returns a tensor of the other process, given the offset of its `DeviceLocation` in a lease.

    Raises:
        ProtocolError: There is no location.
        CudaError: Its memory cannot be opened.
    """
    location, memory = lease.open(offset)
    return GpuTensor(memory.address + location.offset, memory.device, shape, dtype, _Peer(lease, memory))


def is_on_gpu(value: Any) -> bool:
    """Returns whether a value is a library's tensor in the memory of a GPU."""
    return _device_of(value) in (_CUDA, _MANAGED)


def is_on_device(value: Any) -> bool:
    """Returns whether a value is a library's tensor in the memory of a GPU or of any other device."""
    return _device_of(value) not in (None, _CPU)


def _device_of(value: Any) -> int | None:
    """Returns DLPack's number of the kind of device that has a library's tensor; None for anything else."""
    if isinstance(value, np.generic) or not hasattr(value, "__dlpack_device__"):
        return None
    try:
        return int(value.__dlpack_device__()[0])
    except (BufferError, RuntimeError, TypeError, ValueError, AttributeError):  # a tensor without a device
        return None


def as_gpu_tensor(value: Any, *, keeps_bfloat16: bool = False) -> GpuTensor:
    """Converts a library's tensor in the memory of a GPU, without a copy if it is in C order.

    Args:
        value: A tensor for which `is_on_gpu` is true.
        keeps_bfloat16: Whether to keep bfloat16 instead of converting it to float32.

    Raises:
        CudaError: It has a dtype that NumPy lacks, or cannot be shared.
    """
    if isinstance(value, GpuTensor):
        return value
    try:
        torch = torch_of(value)
        if torch is not None:
            with torch.cuda.device(value.device):  # PyTorch only exports tensors of the current GPU
                return _from_torch(torch, value.detach(), keeps_bfloat16)
        if hasattr(value, "flags") and not value.flags.c_contiguous:  # CuPy
            value = value.copy(order="C")
        with context(value.__dlpack_device__()[1]):
            return from_capsule(value.__dlpack__(stream=_LEGACY_STREAM))
    except (BufferError, AttributeError, TypeError) as error:
        raise CudaError(f"a {type(value).__name__} on a GPU cannot be shared: {error}") from error


def _from_torch(torch: Any, tensor: Any, keeps_bfloat16: bool) -> GpuTensor:
    if tensor.dtype is torch.bfloat16 and not keeps_bfloat16:
        tensor = tensor.float()
    # That stream waits for the one that computes the tensor.
    return from_capsule(tensor.contiguous().__dlpack__(stream=_LEGACY_STREAM))


def from_capsule(capsule: Any) -> GpuTensor:
    """Takes over the tensor of a DLPack capsule, in the memory of a GPU.

    Raises:
        CudaError: It has a dtype that NumPy lacks, or is not in C order.
        ValueError: The capsule was used before.
    """
    tensor = head_of(capsule)
    dtype, shape = _dtype_of(tensor), tuple(tensor.shape[: tensor.ndim])
    if tensor.strides and not _is_in_c_order(shape, tensor.strides[: tensor.ndim]):
        raise CudaError("the tensor is not in C order: make it contiguous")
    address = (tensor.data or 0) + tensor.byte_offset
    return GpuTensor(address, tensor.device_id, shape, dtype, _Consumed(capsule))


def head_of(capsule: Any) -> DLTensor:
    """Returns the ``DLTensor`` of a DLPack capsule.

    Raises:
        ValueError: The capsule was used before.
    """
    return DLTensor.from_address(_pointer_of(capsule, _NAME))


def _is_in_c_order(shape: tuple[int, ...], strides: list[int]) -> bool:
    if 0 in shape:
        return True
    expected = 1
    for dim, stride in zip(reversed(shape), reversed(strides)):
        if dim != 1 and stride != expected:
            return False
        expected *= dim
    return True


def _dtype_of(tensor: DLTensor) -> np.dtype[Any]:
    if tensor.code == BFLOAT and tensor.bits == 16:
        return DTYPE_BY_CODE[_BF16_CODE]
    for kind, code in _KINDS.items():
        if code == tensor.code and tensor.lanes == 1:
            return np.dtype(np.bool_) if kind == "b" else np.dtype(f"{kind}{tensor.bits // 8}")
    raise CudaError(f"NumPy has no dtype for DLPack's type {tensor.code} of {tensor.bits} bits")


def _capsule_of(tensor: GpuTensor) -> Any:
    """Returns a DLPack capsule: one of NumPy, which keeps the tensor alive, with device and type replaced."""
    capsule = np.asarray(_Memory(tensor)).__dlpack__()
    head = head_of(capsule)
    head.device_type, head.device_id = tensor.__dlpack_device__()
    head.code = _KINDS.get(tensor.dtype.kind, BFLOAT)
    return capsule
