"""A buddy allocator in anonymous shared memory. Counterpart of ``backend/transport/arena.h``.

Each side of a connection owns one arena and is the only one to allocate in it; the other side maps it, reads, and
releases. An arena is a sparse memfd: its capacity is address space, and only pages that were written take memory. Block
sizes are powers of two, so no sequence of sizes can fragment it permanently.

A block starts with a header of ``BLOCK_HEADER`` bytes. Its first word is 1 while the block is in use; the reader stores
0 there to release it, which any thread may do at any time.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import threading
import time
import weakref
from collections import deque
from typing import Any

import numpy as np

from pytriton.proxy.cuda.driver import PeerMemory, finish_all
from pytriton.proxy.transport.device_arena import DeviceArena, PeerDeviceArena
from pytriton.proxy.transport.page_locks import WORTH_LOCKING, Mapping
from pytriton.proxy.wire.encoding import DeviceLocation

BLOCK_HEADER = 64

_MIN_ORDER = 12  # a page
_MAX_CAPACITY = 1 << 36
_COLLECT_PER_ALLOCATION = 8
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2
# The memory must keep its size: reading beyond the end of a file that has shrunk would kill the reader.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class ArenaError(Exception):
    """Shared memory is exhausted."""


def default_capacity() -> int:
    """Returns the default capacity in bytes: the machine's memory, but no more than 64 GiB.

    It is no more than an eighth of the process's address space limit, either.
    """
    capacity = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        capacity = min(capacity, limit // 16)
    return min(_MAX_CAPACITY, 1 << (capacity - 1).bit_length())


TRIM_AFTER_S = 5.0
"""Seconds after which the pages of a free block are returned to the system."""


class Arena:
    """The arena in which this side allocates. Used by one thread."""

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = 1 << ((capacity or default_capacity()) - 1).bit_length()
        self.fd = os.memfd_create("pytriton", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, self.capacity)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
            self.memory = Mapping(self.fd, self.capacity)
        except BaseException:  # mostly: too many open files, of which the mapping has one, too
            os.close(self.fd)
            raise
        self.memory.madvise(mmap.MADV_DONTDUMP)
        self._words = memoryview(self.memory).cast("q")
        # Per order: (offset, when it was freed, whether it has pages); the most recently freed block is reused first.
        self._free: list[list[tuple[int, float, bool]]] = [[] for _ in range(self.capacity.bit_length())]
        self._free[-1].append((0, 0.0, False))
        # (offset, order, object kept alive), the oldest first
        self._used: deque[tuple[int, int, object]] = deque()
        self.devices = DeviceArena()
        """The arena for tensors in the memory of GPUs."""

    def allocate(self, size: int, keep: object = None) -> int:
        """Allocates a block.

        Args:
            size: Usable bytes.
            keep: An object to keep alive until the other side has released the block.

        Returns:
            The offset in the arena of the block's first usable byte.

        Raises:
            ArenaError: The arena is full.
        """
        order = max(_MIN_ORDER, (size + BLOCK_HEADER - 1).bit_length())
        used = self._used
        if used and used[0][1] == order and self._words[used[0][0] >> 3] == 0:
            offset = used.popleft()[0]  # the common case: the oldest block is free again and has the right size
        else:
            self._collect(_COLLECT_PER_ALLOCATION)
            if order >= len(self._free):
                raise ArenaError(
                    f"results of {size} bytes are larger than shared memory may be ({self.capacity} bytes)"
                )
            free = self._free[order]
            offset = free.pop()[0] if free else self._split(order)
            if 1 << order > WORTH_LOCKING:  # not by its size: the block may be used again for a larger one
                self.memory.lock_block(offset, 1 << order)
        self._words[offset >> 3] = 1
        used.append((offset, order, keep))
        return offset + BLOCK_HEADER

    def discard(self, offset: int) -> None:
        """Frees a block that was never announced to the other side."""
        self._words[(offset - BLOCK_HEADER) >> 3] = 0

    def trim(self, before: float) -> bool:
        """Returns the pages of free blocks to the system.

        Args:
            before: Only blocks that have been free since this ``time.monotonic()``.

        Returns:
            Whether all pages were returned.
        """
        self._collect(len(self._used))
        if self.memory.locks_pages:
            return True
        is_empty = not self._used
        for order, blocks in enumerate(self._free):
            for i, (offset, since, dirty) in enumerate(blocks):
                if dirty and since <= before:
                    _libc.fallocate(self.fd, _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE, offset, 1 << order)
                    blocks[i] = (offset, since, False)
                elif dirty:
                    is_empty = False
        return is_empty

    def in_use(self) -> int:
        """Returns the number of blocks that the other side has not released yet."""
        self._collect(len(self._used))
        return len(self._used)

    def close(self) -> None:
        """Closes the file; the memory is freed together with its last view."""
        with contextlib.suppress(OSError):  # an inference callable may have closed the descriptor
            os.close(self.fd)
        self.fd = -1

    def _split(self, order: int) -> int:
        offset = self._take(order)
        if offset is None:
            self._collect(len(self._used))
            self._merge()
            offset = self._take(order)
        if offset is None:
            raise ArenaError(
                f"no room for results of {1 << order} bytes: {len(self._used)} earlier blocks are still in use"
            )
        return offset

    def _take(self, order: int) -> int | None:
        """Takes a free block of the order, splitting a larger one if there is none."""
        for larger in range(order, len(self._free)):
            if self._free[larger]:
                offset, since, dirty = self._free[larger].pop()
                for half in range(larger - 1, order - 1, -1):
                    self._free[half].append((offset + (1 << half), since, dirty))
                return offset
        return None

    def _collect(self, limit: int) -> None:
        """Reclaims the blocks that the other side has released, among up to ``limit`` used ones."""
        used = self._used
        words = self._words
        for _ in range(min(limit, len(used))):
            offset, order, kept = used.popleft()
            if words[offset >> 3] == 0:
                self._free[order].append((offset, time.monotonic(), True))
            else:
                used.append((offset, order, kept))  # in use for long: check the others before this one again

    def _merge(self) -> None:
        """Merges free buddies. Only done if no block fits: the same sizes tend to be needed again."""
        for order in range(_MIN_ORDER, len(self._free) - 1):
            size = 1 << order
            blocks = {block[0]: block for block in self._free[order]}
            for offset in sorted(blocks):
                buddy = offset + size
                if offset % (2 * size) == 0 and buddy in blocks:
                    first, second = blocks.pop(offset), blocks.pop(buddy)
                    self._free[order + 1].append((offset, max(first[1], second[1]), first[2] or second[2]))
            self._free[order] = list(blocks.values())


class SharedArena(Arena):
    """An arena in which any thread may allocate."""

    def __init__(self) -> None:
        """Creates the arena and its lock."""
        super().__init__()
        self._lock = threading.Lock()

    def allocate(self, size: int, keep: object = None) -> int:
        """See `Arena.allocate`."""
        with self._lock:
            return super().allocate(size, keep)

    def trim(self, before: float) -> bool:
        """See `Arena.trim`."""
        with self._lock:
            return super().trim(before)

    def in_use(self) -> int:
        """See `Arena.in_use`."""
        with self._lock:
            return super().in_use()

    def close(self) -> None:
        """See `Arena.close`."""
        with self._lock:
            super().close()


_new_array = np.ndarray.__new__
_BYTE: np.dtype[np.uint8] = np.dtype(np.uint8)


class Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of a block in the other side's arena.

    Arrays made from it have it as their base, so it lives as long as anything refers to the block. Its destructor
    releases the block.
    """

    __slots__ = ("_arena", "_index")
    _arena: PeerArena
    _index: int

    def open(self, offset: int) -> tuple[DeviceLocation, PeerMemory]:
        """Opens the memory of a GPU that the `DeviceLocation` at ``offset`` refers to.

        Raises:
            ProtocolError: There is no location.
            CudaError: The memory cannot be opened.
        """
        location = DeviceLocation.read(self, offset)
        return location, self._arena.devices.open(location)

    def __del__(self) -> None:
        try:
            words = self._arena.words
        except AttributeError:  # slices of a lease have its class, but do not own the block
            return
        if words is not None:
            words[self._index] = 0


class LockedLease(Lease):
    """A lease of page-locked memory, which a GPU may still be reading when the last array of it is deleted."""

    __slots__ = ()

    def __del__(self) -> None:
        if getattr(self, "_arena", None) is None:  # as above
            return
        try:
            finish_all()
        except Exception:  # the interpreter is exiting, and has cleared this module
            return
        super().__del__()


def map_memory(fd: int) -> Mapping:
    """Maps all of the shared memory of ``fd``, and closes ``fd``.

    Raises:
        OSError: It is not shared memory, or not sealed, so that the other side could truncate it.
    """
    try:
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise OSError(errno.EINVAL, "the other side's shared memory may shrink")
        memory = Mapping(fd, os.fstat(fd).st_size)
        memory.madvise(mmap.MADV_DONTDUMP)  # otherwise, the kernel writes gigabytes for minutes when a process crashes
        return memory
    finally:
        os.close(fd)


class PeerArena:
    """The arena in which the other side allocates."""

    def __init__(self, fd: int) -> None:
        """Maps the whole arena of ``fd``, and closes ``fd``."""
        self.memory = map_memory(fd)
        self._size = len(self.memory)
        self.words: memoryview[int] | None = memoryview(self.memory).cast("q")
        """The arena as words; None in a fork, where leases must not release blocks that the parent uses."""
        self.devices = PeerDeviceArena()
        """The arena for tensors in the memory of GPUs."""
        _peer_arenas.add(self)

    def lease(self, offset: int, size: int) -> Lease:
        """Returns ``size`` bytes of the block at ``offset``, which stay valid while anything refers to them.

        Raises:
            ValueError: There is no such block.
        """
        # Inlined from `_check`, for speed. NumPy does not detect an overflow.
        if not BLOCK_HEADER <= offset <= self._size - size <= self._size:
            self._check(offset, size)
        if size >= WORTH_LOCKING and self.memory.locks_pages:
            self.memory.lock_block(offset - BLOCK_HEADER, 1 << (size + BLOCK_HEADER - 1).bit_length())
            return self._leased(LockedLease, offset, size)
        # Inlined from `_leased`, for speed.
        lease = _new_array(Lease, (size,), _BYTE, self.memory, offset)
        lease._arena = self
        lease._index = (offset - BLOCK_HEADER) >> 3
        return lease

    def _leased(self, kind: type[Lease], offset: int, size: int) -> Lease:
        lease = _new_array(kind, (size,), _BYTE, self.memory, offset)
        lease._arena = self
        lease._index = (offset - BLOCK_HEADER) >> 3
        return lease

    def take(self, offset: int, size: int) -> bytes:
        """Returns a copy of ``size`` bytes of the block at ``offset``, and releases the block.

        Raises:
            ValueError: There is no such block.
        """
        self._check(offset, size)
        data: bytes = self.memory[offset : offset + size]
        if self.words is not None:
            self.words[(offset - BLOCK_HEADER) >> 3] = 0
        return data

    def _check(self, offset: int, size: int) -> None:
        if not BLOCK_HEADER <= offset <= self._size - size <= self._size:
            raise ValueError(f"the arena of {self._size} bytes has no block at {offset} of {size} bytes")


_peer_arenas: weakref.WeakSet[PeerArena] = weakref.WeakSet()


def _forget_in_fork() -> None:
    for arena in _peer_arenas:
        arena.words = None


os.register_at_fork(after_in_child=_forget_in_fork)
