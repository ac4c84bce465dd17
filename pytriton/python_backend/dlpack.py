"""Arrays that are shared with other libraries through DLPack."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from pytriton.model_config.datatypes import BYTES_KINDS, DTYPE_BY_CODE
from pytriton.proxy.cuda.driver import CudaError
from pytriton.proxy.tensors.gpu_tensor import BFLOAT, GpuTensor, as_gpu_tensor, from_capsule, head_of, is_on_gpu
from pytriton.proxy.types import Array
from pytriton.python_backend.datatypes import BF16
from pytriton.python_backend.errors import TritonModelException

_HOST_DEVICES = (1, 3)  # kDLCPU, kDLCUDAHost


class _Capsule:
    """Presents a DLPack capsule as an object that NumPy can import."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule
        self.head = head_of(capsule)

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.head.device_type, self.head.device_id


class _Writable:
    """Presents an array as writable: NumPy treats a capsule without that flag as read-only."""

    def __init__(self, array: Array) -> None:
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
        self._array = array  # owns the memory


def to_capsule(array: Array, arguments: dict[str, Any]) -> Any:
    """Returns a DLPack capsule that shares the array's memory, or that of a copy if the array is read-only.

    Args:
        array: An array of any dtype except objects.
        arguments: The arguments of ``__dlpack__``.

    Raises:
        TritonModelException: DLPack has no such dtype.
    """
    if array.dtype.kind in BYTES_KINDS:
        raise TritonModelException("a tensor of BYTES has no DLPack form: use as_numpy()")
    if not array.flags.writeable:
        array = array.copy()
    if array.dtype.kind == "V":
        return _torch_of(array).__dlpack__(**arguments)
    return array.__dlpack__(**arguments)


def from_dlpack(source: Any) -> Array | GpuTensor:
    """Converts a DLPack capsule, or an object that exports one, to an array, or to a tensor on a GPU.

    Raises:
        TritonModelException: It is neither, or its memory cannot be read from here.
    """
    if type(source).__name__ == "PyCapsule":
        try:
            source = _Capsule(source)
        except ValueError as error:
            raise TritonModelException(f"this DLPack capsule cannot be read: {error}") from None
    elif not (hasattr(source, "__dlpack__") and hasattr(source, "__dlpack_device__")):
        raise TritonModelException(f"{type(source).__name__} is neither a DLPack capsule nor an object with __dlpack__")
    if is_on_gpu(source):
        try:
            is_capsule = isinstance(source, _Capsule)
            return from_capsule(source.capsule) if is_capsule else as_gpu_tensor(source, keeps_bfloat16=True)
        except CudaError as error:
            raise TritonModelException(str(error)) from error
    if source.__dlpack_device__()[0] not in _HOST_DEVICES or _is_bfloat(source):
        return _by_torch(source)
    try:
        array: Array = np.from_dlpack(source)
        return np.asarray(_Writable(array)) if isinstance(source, _Capsule) else array
    except (BufferError, RuntimeError, TypeError) as error:
        raise TritonModelException(f"NumPy does not accept this DLPack tensor: {error}") from error


def _is_bfloat(source: Any) -> bool:
    if isinstance(source, _Capsule):
        return bool(source.head.code == BFLOAT)
    return "bfloat16" in str(getattr(source, "dtype", ""))


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise TritonModelException(
            "DLPack tensors of bfloat16, or in a device's memory, are read and made with torch, which is not installed"
        ) from None
    return torch


def _by_torch(source: Any) -> Array:
    torch = _torch()
    tensor = torch.from_dlpack(source.capsule if isinstance(source, _Capsule) else source).detach().cpu().contiguous()
    if tensor.dtype != torch.bfloat16:
        return cast(Array, tensor.numpy())
    return cast(Array, tensor.view(torch.int16).numpy().view(DTYPE_BY_CODE[BF16]))


def _torch_of(array: Array) -> Any:
    torch = _torch()
    return torch.from_numpy(np.ascontiguousarray(array).view(np.int16)).view(torch.bfloat16)
