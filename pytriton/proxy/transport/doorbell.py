"""A doorbell: futex-based wake-up with a one-slot mailbox. Counterpart of ``backend/transport/doorbell.h``.

Sleeping on a futex costs much less than on a socket, so both sides share words in memory. In sequential mode, only one
notification is in transit at a time, and it is stored next to these words; other notifications go over a socket, and
the words count them.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from typing import Any, Optional

from pytriton.proxy.transport.arena import map_memory
from pytriton.proxy.transport.spin_library import can_spin, spin_at_word
from pytriton.proxy.wire.notification import Notification

DOORBELL_SIZE = 128
"""Bytes of shared memory that a doorbell takes: a 32-bit word and a slot for the worker; 64 bytes further, two words
and a slot for the backend."""

POLL_FLAG_SIZE = 64
"""Bytes of shared memory that a poll flag takes: two words."""

_BACKEND = 64  # where the backend's half starts
_ACKNOWLEDGED = (_BACKEND + 4) // 4  # index of the word that counts the notifications taken by the worker
_OFFSET, _SIZE, _SEQUENCE, _KIND = 1, 2, 3, 4  # fields of a notification, as 64-bit words of each half
_BACKENDS_OFFSET, _BACKENDS_SIZE, _BACKENDS_SEQUENCE = 9, 10, 11
_FUTEX_WAIT, _FUTEX_WAKE, _FUTEX_WAKE_OP = 0, 1, 5
_ADD_1 = 1 << 28 | 1 << 12  # the operation of `_FUTEX_WAKE_OP`
_MASK = 0xFFFFFFFF

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_SLEEP_OR_WAKE = (ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
_syscall = ctypes.CDLL(None).syscall  # releases the GIL
_syscall.argtypes = _SLEEP_OR_WAKE
_wake = ctypes.PyDLL(None).syscall  # keeps it
_wake.argtypes = _SLEEP_OR_WAKE
_syscall_on_two_words = ctypes.PyDLL(None).syscall
_syscall_on_two_words.argtypes = (*_SLEEP_OR_WAKE, ctypes.c_void_p, ctypes.c_uint32)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


def has_futex() -> bool:
    """Returns whether the number of the futex system call is known on this machine."""
    return _FUTEX is not None


class WakeFlag:
    """The wake flag of a thread on the other side that receives notifications from many workers.

    Args:
        fd: A page of shared memory, whose first word is 1 while the thread sleeps. It is closed.
    """

    def __init__(self, fd: int) -> None:
        page = map_memory(fd)
        self._word = memoryview(page).cast("I")
        self._address = ctypes.addressof(ctypes.c_uint32.from_buffer(page))

    def wake(self) -> None:
        """Wakes the thread if it sleeps."""
        if self._word[0] and _FUTEX is not None:
            self._word[0] = 0
            _wake(_FUTEX, self._address, _FUTEX_WAKE, 1, None)


class PollFlag:
    """The worker's end of two words by which a thread on the other side receives notifications while it polls anyway.

    Args:
        memory: A mapping of the backend's arena.
        offset: Where the words are in the arena.
    """

    def __init__(self, memory: Any, offset: int) -> None:
        self._words = memoryview(memory)[offset : offset + POLL_FLAG_SIZE].cast("I")

    def show(self) -> bool:
        """Shows a notification that was sent to the thread that polls; returns whether there is one."""
        words = self._words
        if not words[0]:
            return False
        words[1] = 1
        return True


class Doorbell:
    """The worker's end of a doorbell: two words, one for each side, count the notifications sent to that side.

    Args:
        memory: A mapping of the backend's arena.
        offset: Where the doorbell is in the arena.
        timeout_s: How long `sleep` sleeps.
    """

    def __init__(self, memory: Any, offset: int, timeout_s: float) -> None:
        both = memoryview(memory)[offset : offset + DOORBELL_SIZE]
        self._words = both.cast("I")
        self._notifications = both.cast("q")
        self._own = ctypes.addressof(ctypes.c_uint32.from_buffer(memory, offset))
        self._backends = self._own + _BACKEND
        self._keep = memory
        self._timeout = _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))
        self._timeout_address = ctypes.addressof(self._timeout)
        self._acknowledged = 0
        self._sequence = 0  # of the last batch
        self.notified_without_batch = False
        """Whether a notification arrived without a batch: the other side has closed, or this side called `wake`."""

    def has_notification(self) -> bool:
        """Returns whether there is an unacknowledged notification."""
        return self._words[0] != self._acknowledged

    @property
    def unacknowledged(self) -> int:
        """The number of the newest notification, if it was not acknowledged; otherwise 0."""
        words = self._words
        sent = words[0]
        return 0 if sent == words[_ACKNOWLEDGED] else sent

    def acknowledge(self) -> None:
        """Acknowledges a notification; the other side can see that."""
        self._acknowledged = (self._acknowledged + 1) & _MASK
        self._words[_ACKNOWLEDGED] = self._acknowledged

    def acknowledge_aloud(self) -> None:
        """Acknowledges a notification, and wakes the other side if it waits for that."""
        _ring(self._own + 4 * _ACKNOWLEDGED)

    def take(self) -> Notification | None:
        """Takes the batch's notification out of the slot; returns None if there is none."""
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

    @property
    def linger(self) -> Optional[Callable[[int], bool]]:  # noqa: UP045
        """Spins without the interpreter until a notification arrives, or a given time; see `AdaptiveSpin.wait`."""
        return self._linger if can_spin() else None  # not stored: a reference cycle would keep the memory mapped

    def _linger(self, end_ns: int) -> bool:
        return spin_at_word(self._own, self._acknowledged, end_ns)

    def sleep(self, *, forever: bool = False) -> None:
        """Sleeps until a notification arrives, `wake` is called or, unless ``forever``, the timeout has passed."""
        _syscall(_FUTEX, self._own, _FUTEX_WAIT, self._acknowledged, None if forever else self._timeout_address)

    def wake(self) -> None:
        """Wakes the thread that sleeps on this side, or is about to."""
        _ring(self._own)

    def notify(self, result: tuple[int, int, int, int] | None = None) -> None:
        """Notifies the other side of a result or, without one, of the end of this side."""
        if result is not None:
            notifications = self._notifications
            _, sequence, notifications[_BACKENDS_OFFSET], notifications[_BACKENDS_SIZE] = result
            notifications[_BACKENDS_SEQUENCE] = sequence
        _ring(self._backends)


def _ring(word: int) -> None:
    """Counts a notification, and wakes the thread that sleeps."""
    # The kernel increments the count: a reader who sees it also sees earlier writes, on any processor.
    _syscall_on_two_words(_FUTEX, word, _FUTEX_WAKE_OP, 1, None, word, _ADD_1)
