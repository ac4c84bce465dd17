"""What a thread sleeps on until a bell has come. Twin of ``backend/doorbell.h``.

To sleep at a socket costs much more than at a futex, so both sides share words in memory. In lock-step, where one bell
is on its way at a time, it lies beside them; other bells travel over a socket.
"""

from __future__ import annotations

import ctypes
import platform
from typing import Any

from pytriton.proxy.transport.arena import map_memory
from pytriton.proxy.wire.notification import Notification

DOORBELL_SIZE = 128
"""Bytes of shared memory that it takes: a word of 32 bits and a bell for the worker, and 64 bytes further two words and
a bell for the backend."""

_BACKEND = 64  # where the backend's half starts
_ACKNOWLEDGED = (_BACKEND + 4) // 4  # index of the word that tells the backend how many bells the worker has taken
_OFFSET, _SIZE, _SEQUENCE, _KIND = 1, 2, 3, 4  # of a bell, as words of 64 bits in its half
_BACKENDS_OFFSET, _BACKENDS_SIZE, _BACKENDS_SEQUENCE = 9, 10, 11
_FUTEX_WAIT, _FUTEX_WAKE, _FUTEX_WAKE_OP = 0, 1, 5
_ADD_1 = 1 << 28 | 1 << 12  # what `_FUTEX_WAKE_OP` does to the word
_MASK = 0xFFFFFFFF

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_SLEEP_OR_WAKE = (ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
_syscall = ctypes.CDLL(None).syscall  # it lets go of the GIL
_syscall.argtypes = _SLEEP_OR_WAKE
_syscall_on_two_words = ctypes.CDLL(None).syscall
_syscall_on_two_words.argtypes = (*_SLEEP_OR_WAKE, ctypes.c_void_p, ctypes.c_uint32)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


def has_futex() -> bool:
    """Whether the number of the system call is known on this machine."""
    return _FUTEX is not None


class WakeFlag:
    """Where a thread of the other side sleeps that many workers send bells to.

    Args:
        fd: A page of shared memory, which is closed. Its first word is 1 while the thread sleeps.
    """

    def __init__(self, fd: int) -> None:
        """Maps the page."""
        page = map_memory(fd)
        self._word = memoryview(page).cast("I")
        self._address = ctypes.addressof(ctypes.c_uint32.from_buffer(page))

    def wake(self) -> None:
        """Wakes the thread, if it sleeps."""
        if self._word[0] and has_futex():
            self._word[0] = 0
            _syscall(_FUTEX, self._address, _FUTEX_WAKE, 1, None)


class Doorbell:
    """The worker's end of two words, one for each side, that count the bells which were sent to it.

    Args:
        memory: A mapping of the backend's arena.
        offset: Where in it the doorbell is.
        patience_s: How long `sleep` sleeps, less than a second.
    """

    def __init__(self, memory: Any, offset: int, timeout_s: float) -> None:
        both = memoryview(memory)[offset : offset + DOORBELL_SIZE]
        self._words = both.cast("I")
        self._notifications = both.cast("q")
        self._own = ctypes.addressof(ctypes.c_uint32.from_buffer(memory, offset))
        self._backends = self._own + _BACKEND
        self._keep = memory
        self._timeout = _Timespec(0, int(timeout_s * 1e9))
        self._timeout_address = ctypes.addressof(self._timeout)
        self._acknowledged = 0
        self._sequence = 0  # of the batch that was taken last
        self.notified_without_batch = False
        """Whether it has rung without a batch, as it does when the other side ends."""

    def has_notification(self) -> bool:
        """Whether a bell has come that was not heard yet."""
        return self._words[0] != self._acknowledged

    def acknowledge(self) -> None:
        """Notes that a bell was taken, for the other side to see too."""
        self._acknowledged = (self._acknowledged + 1) & _MASK
        self._words[_ACKNOWLEDGED] = self._acknowledged

    def take(self) -> Notification | None:
        """Takes the batch that has rung, if one has, and lies beside the word."""
        words = self._words
        if words[0] == self._acknowledged:
            return None
        self._acknowledged = words[_ACKNOWLEDGED] = (self._acknowledged + 1) & _MASK
        notifications = self._notifications
        sequence = notifications[_SEQUENCE]  # written last
        if sequence == self._sequence:
            self.notified_without_batch = True
            return None
        self._sequence = sequence
        return tuple.__new__(
            Notification, (notifications[_KIND], sequence, notifications[_OFFSET], notifications[_SIZE])
        )

    def sleep(self) -> None:
        """Sleeps until it rings, is woken, or has slept for long enough."""
        _syscall(_FUTEX, self._own, _FUTEX_WAIT, self._acknowledged, self._timeout_address)

    def wake(self) -> None:
        """Wakes who sleeps on this side."""
        _syscall(_FUTEX, self._own, _FUTEX_WAKE, 1, None)

    def notify(self, result: tuple[int, int, int, int] | None = None) -> None:
        """Tells the other side that there is a result, whose bell is to lie beside the word, or that this side ends."""
        if result is not None:
            notifications = self._notifications
            _, sequence, notifications[_BACKENDS_OFFSET], notifications[_BACKENDS_SIZE] = result
            notifications[_BACKENDS_SEQUENCE] = sequence
        # The kernel counts: what was written before is seen by whoever sees the count, on any machine.
        _syscall_on_two_words(_FUTEX, self._backends, _FUTEX_WAKE_OP, 1, None, self._backends, _ADD_1)
