"""What a thread sleeps on until a bell has come. Twin of ``backend/doorbell.h``.

Bells themselves travel over the channel's socket. To sleep at a socket costs much more than at a futex, so both sides
share words in memory.
"""

from __future__ import annotations

import ctypes
import platform
from typing import Any

from pytriton.proxy.arena import mapped

DOORBELL_SIZE = 128
"""Bytes of shared memory that it takes: a word of 32 bits for the worker, and 64 bytes further two for the backend."""

_BACKEND = 64 // 4  # index of the backend's word
_HEARD = _BACKEND + 1  # of the one that tells the backend how many bells the worker has taken
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_MASK = 0xFFFFFFFF

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_syscall = ctypes.CDLL(None).syscall  # it lets go of the GIL
_syscall.argtypes = (ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


def can_sleep_there() -> bool:
    """Whether the number of the system call is known on this machine."""
    return _FUTEX is not None


class Bed:
    """Where a thread of the other side sleeps that many workers send bells to.

    Args:
        fd: A page of shared memory, which is closed. Its first word is 1 while the thread sleeps.
    """

    def __init__(self, fd: int) -> None:
        """Maps the page."""
        page = mapped(fd)
        self._word = memoryview(page).cast("I")
        self._address = ctypes.addressof(ctypes.c_uint32.from_buffer(page))

    def wake(self) -> None:
        """Wakes the thread, if it sleeps."""
        if self._word[0] and can_sleep_there():
            self._word[0] = 0
            _syscall(_FUTEX, self._address, _FUTEX_WAKE, 1, None)


class Doorbell:
    """The worker's end of two words, one for each side, that count the bells which were sent to it.

    Args:
        memory: A mapping of the backend's arena.
        offset: Where in it the doorbell is.
        patience_s: How long `sleep` sleeps, less than a second.
    """

    def __init__(self, memory: Any, offset: int, patience_s: float) -> None:
        self._words = memoryview(memory)[offset : offset + DOORBELL_SIZE].cast("I")
        self._own = ctypes.addressof(ctypes.c_uint32.from_buffer(memory, offset))
        self._backends = self._own + 4 * _BACKEND
        self._keep = memory
        self._patience = _Timespec(0, int(patience_s * 1e9))
        self._rung = self._heard = 0

    def has_rung(self) -> bool:
        """Whether a bell has come that was not heard yet."""
        return self._words[0] != self._heard

    def hear(self) -> None:
        """Notes that a bell was taken, for the other side to see too."""
        self._heard = (self._heard + 1) & _MASK
        self._words[_HEARD] = self._heard

    def sleep(self) -> None:
        """Sleeps until it rings, is woken, or has slept for long enough."""
        _syscall(_FUTEX, self._own, _FUTEX_WAIT, self._heard, ctypes.addressof(self._patience))

    def wake(self) -> None:
        """Wakes who sleeps on this side."""
        _syscall(_FUTEX, self._own, _FUTEX_WAKE, 1, None)

    def ring(self) -> None:
        """Tells the other side that a bell was sent to it."""
        self._rung = (self._rung + 1) & _MASK
        self._words[_BACKEND] = self._rung
        _syscall(_FUTEX, self._backends, _FUTEX_WAKE, 1, None)
