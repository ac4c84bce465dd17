"""The part of NVIDIA's driver that workers use. Counterpart of ``backend/cuda/driver.h``.

It is opened on first use, so that it is not required. Libraries such as PyTorch use the same driver and the same
(primary) context of each GPU, so memory and pointers can be shared with them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator
from typing import Any

from pytriton.exceptions import PyTritonRuntimeError

_LIBRARY = "libcuda.so.1"
_SUCCESS = 0
_DEFAULT_STREAM = 1  # the legacy stream, PyTorch's default
_OPEN_LAZILY = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag
_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: page-locked for all GPUs

_HANDLE_SIZE = 64  # bytes of the handle with which another process opens memory
_ID_SIZE = 16  # bytes of a GPU's id, which is the same in all processes, unlike its number


class _Handle(ctypes.Structure):  # passed by value
    _fields_ = (("bytes", ctypes.c_ubyte * _HANDLE_SIZE),)


_Address = ctypes.c_uint64
_Stream = ctypes.c_void_p
_Context = ctypes.c_void_p
# The driver's header adds these suffixes to the names.
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "cuInit": (ctypes.c_uint,),
    "cuDeviceGet": (ctypes.POINTER(ctypes.c_int), ctypes.c_int),
    "cuDeviceGetCount": (ctypes.POINTER(ctypes.c_int),),
    "cuDeviceGetUuid_v2": (ctypes.c_char * _ID_SIZE, ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(_Context), ctypes.c_int),
    "cuDevicePrimaryCtxGetState": (ctypes.c_int, ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_int)),
    "cuCtxPushCurrent_v2": (_Context,),
    "cuCtxPopCurrent_v2": (ctypes.POINTER(_Context),),
    "cuCtxSynchronize": (),
    "cuMemcpyAsync": (_Address, _Address, ctypes.c_size_t, _Stream),
    "cuStreamSynchronize": (_Stream,),
    "cuMemAlloc_v2": (ctypes.POINTER(_Address), ctypes.c_size_t),
    "cuMemFree_v2": (_Address,),
    "cuMemHostRegister_v2": (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint),
    "cuMemHostUnregister": (ctypes.c_void_p,),
    "cuIpcGetMemHandle": (ctypes.POINTER(_Handle), _Address),
    "cuIpcOpenMemHandle_v2": (ctypes.POINTER(_Address), _Handle, ctypes.c_uint),
    "cuIpcCloseMemHandle": (_Address,),
}


# Unlike a `ctypes.CDLL`, a call leaves no garbage, which an idle process would keep until its next collection.
_dlopen = ctypes.CDLL(None).dlopen
_dlopen.argtypes = (ctypes.c_char_p, ctypes.c_int)
_dlopen.restype = ctypes.c_void_p


class CudaError(PyTritonRuntimeError):
    """The driver of a GPU reported an error."""


def used_device() -> int | None:
    """Returns the number of a GPU that this process already uses; None if it uses none."""
    return next(iter(_used_devices()), None)


def _used_devices() -> list[int]:
    used: list[int] = []
    with contextlib.suppress(OSError, CudaError):
        # This check neither opens nor initializes the driver, which would break CUDA in forks.
        if not _library.cache_info().currsize and _dlopen(_LIBRARY.encode(), os.RTLD_NOLOAD | os.RTLD_NOW) is None:
            return used
        driver = _library()
        for device in _devices(driver):
            flags, is_active = ctypes.c_uint(), ctypes.c_int()
            driver.cuDevicePrimaryCtxGetState(_device(driver, device), ctypes.byref(flags), ctypes.byref(is_active))
            if is_active.value:
                used.append(device)
    return used


@functools.cache
def id_of(device: int) -> bytes:
    """Returns the id of a GPU.

    Raises:
        CudaError: There is no such GPU.
    """
    found = (ctypes.c_char * _ID_SIZE)()
    driver = _driver()
    driver.cuDeviceGetUuid_v2(found, _device(driver, device))
    return found.raw


def visible_gpus() -> list[bytes]:
    """Returns the ids of the GPUs that are visible to this process, the one in use first."""
    with contextlib.suppress(CudaError):
        devices, used = _devices(_driver()), used_device() or 0
        return [id_of(device) for device in sorted(devices, key=lambda device: device != used)]
    return []


@functools.cache
def device_of(gpu: bytes) -> int:
    """Returns the number of the GPU with an id.

    Raises:
        CudaError: It is not visible to this process.
    """
    for device in _devices(_driver()):
        if id_of(device) == gpu:
            return device
    raise CudaError("this process does not see the GPU")


@contextlib.contextmanager
def context(device: int) -> Iterator[None]:
    """Makes a GPU's primary context current in this thread.

    Raises:
        CudaError: There is no such GPU.
    """
    driver = _driver()
    driver.cuCtxPushCurrent_v2(_primary_context(device))
    try:
        yield
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(_Context()))


def start_copy(target: int, source: int, size: int) -> None:
    """Starts a copy between host memory and memory of GPUs, in any direction, in a `context`.

    It is ordered after the pending work of PyTorch's default stream, and before later work.
    """
    if size:
        _driver().cuMemcpyAsync(target, source, size, _DEFAULT_STREAM)


def wait() -> None:
    """Waits for the copies that were started in the current `context`."""
    _driver().cuStreamSynchronize(_DEFAULT_STREAM)


def finish(device: int) -> None:
    """Waits for all work of this process on a GPU."""
    with context(device):
        _driver().cuCtxSynchronize()


def finish_all() -> None:
    """Waits for all work of this process on any GPU."""
    for device in _used_devices():
        with contextlib.suppress(CudaError):
            finish(device)


def lock_pages(address: int, size: int) -> None:
    """Page-locks memory, which GPUs access several times faster than other memory.

    Raises:
        CudaError: The driver refused.
    """
    with context(used_device() or 0):
        _driver().cuMemHostRegister_v2(address, size, _PORTABLE)


def unlock_pages(address: int) -> None:
    """Undoes `lock_pages`."""
    with context(used_device() or 0):
        _driver().cuMemHostUnregister(address)


class Memory:
    """Memory of a GPU that other processes can open.

    Attributes:
        device: The GPU.
        size: Size in bytes.
        address: Its address.
        handle: The handle with which another process opens it.
        gpu: The id of the GPU.

    Raises:
        CudaError: There is too little memory, or it cannot be shared.
    """

    def __init__(self, size: int, device: int) -> None:
        self.size = size
        self.device = device
        self.address = 0
        address, handle = _Address(), _Handle()
        with context(device):
            _driver().cuMemAlloc_v2(ctypes.byref(address), size)
            self.address = address.value
            _driver().cuIpcGetMemHandle(ctypes.byref(handle), self.address)
        self.handle = bytes(handle.bytes)
        self.gpu = id_of(device)

    def __del__(self) -> None:
        if self.address:
            with contextlib.suppress(CudaError), context(self.device):
                _driver().cuMemFree_v2(self.address)


class PeerMemory:
    """Memory of a GPU that another process has allocated.

    Attributes:
        address: Its address in this process.
        device: The GPU.

    Raises:
        CudaError: It cannot be opened.
    """

    def __init__(self, handle: bytes, gpu: bytes) -> None:
        self.address = 0
        self.device = device_of(gpu)
        address = _Address()
        with context(self.device):
            _driver().cuIpcOpenMemHandle_v2(ctypes.byref(address), _Handle.from_buffer_copy(handle), _OPEN_LAZILY)
        self.address = address.value

    def __del__(self) -> None:
        if self.address:
            with contextlib.suppress(CudaError), context(self.device):
                _driver().cuIpcCloseMemHandle(self.address)


@functools.cache
def _driver() -> ctypes.CDLL:
    library = _library()
    library.cuInit(0)
    return library


@functools.cache
def _library() -> ctypes.CDLL:
    if _is_in_fork:
        raise CudaError("a fork of a process that uses a GPU cannot use it")
    try:
        library = ctypes.CDLL(_LIBRARY)
        for name, arguments in _ARGUMENTS.items():
            function = getattr(library, name)
            function.argtypes = arguments
            function.errcheck = functools.partial(_check, library, name)
    except (OSError, AttributeError) as error:
        raise CudaError(f"there is no driver for GPUs: {error}") from error
    return library


def _check(library: ctypes.CDLL, name: str, result: int, *_: object) -> int:
    if result != _SUCCESS:
        text = ctypes.c_char_p()
        library.cuGetErrorString(result, ctypes.byref(text))
        raise CudaError(f"{name}: {(text.value or b'unknown error').decode()} (CUDA error {result})")
    return result


_is_in_fork = False


def _forget_in_fork() -> None:
    """Forgets GPU memory and contexts, which belong to the parent process."""
    global _is_in_fork
    _is_in_fork = _is_in_fork or _driver.cache_info().currsize > 0
    _driver.cache_clear()
    _library.cache_clear()


os.register_at_fork(after_in_child=_forget_in_fork)


def _devices(driver: ctypes.CDLL) -> range:
    """Returns the numbers of the GPUs."""
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    return range(count.value)


def _device(driver: ctypes.CDLL, number: int) -> int:
    """Returns the driver's handle of a GPU."""
    device = ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), number)
    return device.value


@functools.cache
def _primary_context(device: int) -> _Context:
    handle, driver = _Context(), _driver()
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(handle), _device(driver, device))
    return handle
