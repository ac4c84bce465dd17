"""Page-locked shared memory, which GPUs access several times faster than other memory."""

from __future__ import annotations

import logging
import mmap
import threading

import numpy as np

from pytriton.proxy.cuda.driver import CudaError, lock_pages, unlock_pages

LOGGER = logging.getLogger(__name__)

WORTH_LOCKING = 1 << 18
"""The smallest block that is page-locked, in bytes: for smaller ones, it makes little difference."""

_RANGE = 1 << 25  # bytes that are locked at a time, which takes a few milliseconds


class Mapping(mmap.mmap):
    """Shared memory whose blocks can be page-locked, each as a whole.

    Sizes of blocks are powers of two, and their offsets multiples of their size. The same holds for locked ranges.
    """

    _locked: dict[int, int] | None = None  # sizes of the locked ranges by their offset; None until there may be some
    _is_refused = False
    _address: int
    _lock: threading.Lock

    @property
    def locks_pages(self) -> bool:
        """Whether blocks are page-locked."""
        return self._locked is not None

    def lock_blocks(self) -> None:
        """Enables locking of blocks. From now on, the owner of the memory must not return pages to the system."""
        self._address = np.frombuffer(self, np.uint8).__array_interface__["data"][0]
        self._lock = threading.Lock()
        self._locked = {}

    def lock_block(self, offset: int, size: int) -> None:
        """Locks a block, if locking is enabled and the driver does not refuse.

        Args:
            offset: Where the block starts.
            size: Its size in bytes, a power of two.
        """
        locked = self._locked
        if locked is None or size < WORTH_LOCKING:
            return
        length = min(max(size, _RANGE), len(self))
        start = offset & -length
        with self._lock:
            if self._is_refused or any(first <= start and start + length <= first + locked[first] for first in locked):
                return
            try:
                # Smaller ranges in it no longer belong to separate blocks.
                for first in [first for first in locked if start <= first < start + length]:
                    unlock_pages(self._address + first)
                    del locked[first]
                lock_pages(self._address + start, length)
                locked[start] = length
            except CudaError as error:
                LOGGER.debug("Shared memory is not page-locked: %s", error)
                self._is_refused = True

    def __del__(self) -> None:
        try:
            for first in self._locked or ():
                unlock_pages(self._address + first)
        except Exception:  # the interpreter is exiting, and may have cleared this module or the driver
            return
