"""Memory of GPUs for the tensors of batches. Counterpart of ``backend/transport/device_arena.h``.

Each side allocates memory for the tensors that it sends, and the other side opens it (CUDA IPC). Sizes are powers of
two, and memory stays allocated until the connection is closed: opening it takes a hundred microseconds.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

from pytriton.proxy.cuda.driver import CudaError, Memory, PeerMemory
from pytriton.proxy.wire.encoding import DeviceLocation

LOGGER = logging.getLogger(__name__)

_MIN_SIZE = 1 << 21  # the driver allocates no less


_refusal: str | None = None  # the reason if memory of GPUs cannot be shared here


class DeviceBlock:
    """Memory of a GPU, which is reused once this object is deleted."""

    def __init__(self, memory: Memory, free: deque[Memory]) -> None:
        self.memory = memory
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.memory)


class DeviceArena:
    """This side's memory of a GPU, in which it allocates."""

    def __init__(self) -> None:
        self._free: deque[Memory] = deque()
        self._has_warned = False

    def warn(self, error: CudaError) -> None:
        """Logs once that tensors go through host memory, and why."""
        if not self._has_warned:
            self._has_warned = True
            LOGGER.warning("Tensors of a GPU are copied to memory: %s", error)

    def allocate(self, size: int, device: int) -> DeviceBlock:
        """Returns memory of a GPU, at least ``size`` bytes.

        Raises:
            CudaError: There is too little memory, or it cannot be shared.
        """
        if _refusal is not None:
            raise CudaError(_refusal)
        rounded = max(_MIN_SIZE, 1 << (size - 1).bit_length())
        for _ in range(len(self._free)):
            try:
                memory = self._free.popleft()
            except IndexError:  # another thread has taken the last one
                break
            if memory.size == rounded and memory.device == device:
                return DeviceBlock(memory, self._free)
            self._free.append(memory)
        try:
            return DeviceBlock(Memory(rounded, device), self._free)
        except CudaError:
            if not self._free:
                raise
            self._free.clear()  # blocks of other sizes may make room
            return DeviceBlock(Memory(rounded, device), self._free)


class PeerDeviceArena:
    """The other side's memory of a GPU, which this side opens."""

    def __init__(self) -> None:
        self._opened: dict[tuple[bytes, bytes], PeerMemory] = {}
        self._lock = threading.Lock()

    @property
    def has_opened(self) -> bool:
        """Whether memory of the other side can be opened."""
        return bool(self._opened)

    def try_to_open(self, location: DeviceLocation) -> None:
        """Opens memory if possible; after a failure, this process does not share its own memory either."""
        global _refusal
        try:
            self.open(location)
        except CudaError as error:
            _refusal = str(error)

    def open(self, location: DeviceLocation) -> PeerMemory:
        """Returns the memory that contains a tensor.

        Raises:
            CudaError: It cannot be opened.
        """
        key = (location.gpu, location.handle)
        with self._lock:
            memory = self._opened.get(key)
            if memory is None:
                memory = self._opened[key] = PeerMemory(location.handle, location.gpu)
        return memory
