"""Adaptive busy-waiting: polls for a short while before sleeping. Twin of ``backend/transport/adaptive_spin.h``.

A sleeping thread runs again only 20 to 50 us after it is woken. When requests come one after the other, that is a large
part of the time that each of them takes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Optional, TypeVar

_MAX_WAIT_NS = 400_000  # longer waits are not worth spinning for
_SLACK_NS = 20_000
_MIN_BACKOFF = 8
_MAX_BACKOFF = 1024

_FEW_REQUESTS = 2
_BACKLOG_BATCHES = 32  # batches after a large one, before spinning is tried again

_Thing = TypeVar("_Thing")

_spinning = threading.Lock()  # held by the one thread that spins, since it also holds the interpreter


def _may_spin() -> bool:
    return os.environ.get("PYTRITON_SPIN") != "0" and len(os.sched_getaffinity(0)) > 1


class AdaptiveSpin:
    """Waits for a recurring event, and learns how long it takes. Used by one thread at a time."""

    __slots__ = ("_average_ns", "_backlog", "_backoff", "_is_allowed", "_next_backoff")

    def __init__(self) -> None:
        self._is_allowed = _may_spin()
        self._average_ns = 10 * _MAX_WAIT_NS  # moving average of the time it takes
        self._backlog = 0  # waits left until the backlog counts as gone
        self._backoff = 0  # waits left until spinning is tried again
        self._next_backoff = _MIN_BACKOFF

    def wait(
        self,
        poll: Callable[[], Optional[_Thing]],  # noqa: UP045
        sleep: Callable[[], Optional[_Thing]],  # noqa: UP045
        batch_size: int = 0,
    ) -> Optional[_Thing]:  # noqa: UP045
        """Waits for the event, spinning where that is likely to pay.

        Args:
            poll: Returns the event, or None if it has not happened yet.
            sleep: Blocks until the event happens; may give up and return None.
            batch_size: Number of requests in the previous batch. After a large one clients are queueing, and for a
                while the processor has better things to do than to spin.

        Returns:
            The event, or None if ``sleep`` gave up.
        """
        if batch_size > _FEW_REQUESTS:
            self._backlog = _BACKLOG_BATCHES
        elif self._backlog:
            self._backlog -= 1
        if self._backlog:
            return sleep()
        begin = time.monotonic_ns()
        thing = None
        if self._average_ns < _MAX_WAIT_NS and self._is_allowed:
            if self._backoff:
                self._backoff -= 1
            elif _spinning.acquire(blocking=False):
                try:
                    thing = self._spin(poll, begin)
                finally:
                    _spinning.release()
        if thing is None:
            thing = sleep()
        waited = min(time.monotonic_ns() - begin, 10 * _MAX_WAIT_NS)
        self._average_ns += (waited - self._average_ns) >> 3
        return thing

    def _spin(self, poll: Callable[[], Optional[_Thing]], begin: int) -> Optional[_Thing]:  # noqa: UP045
        thing = _poll_until(begin + 2 * self._average_ns + _SLACK_NS, poll)
        if thing is None:
            self._backoff = self._next_backoff
            self._next_backoff = min(2 * self._next_backoff, _MAX_BACKOFF)
        else:
            self._next_backoff = max(self._next_backoff // 2, _MIN_BACKOFF)
        return thing


def _poll_until(end: int, poll: Callable[[], Optional[_Thing]]) -> Optional[_Thing]:  # noqa: UP045
    thing = poll()
    while thing is None and time.monotonic_ns() < end:
        os.sched_yield()  # to any thread that has work to do
        thing = poll()
    return thing
