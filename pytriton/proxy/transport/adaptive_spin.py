"""Waiting for what comes soon, by asking for it again and again. Twin of ``backend/spin.h``.

A thread that sleeps is awake again only 20 to 50 us after it was woken. Where requests come one after the other, that
is a good part of the time that each takes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Optional, TypeVar

_MAX_WAIT_NS = 400_000  # what usually takes longer is slept for
_SLACK_NS = 20_000
_MIN_BACKOFF = 8
_MAX_BACKOFF = 1024

_FEW_REQUESTS = 2
_BACKLOG_BATCHES = 32  # batches, of which clients in line fill but some

_Thing = TypeVar("_Thing")

_spinning = threading.Lock()  # held by the one thread that spins: others want the interpreter


def _may_spin() -> bool:
    return os.environ.get("PYTRITON_SPIN") != "0" and len(os.sched_getaffinity(0)) > 1


class AdaptiveSpin:
    """What one waits for again and again, and how long it took. Used by one thread at a time."""

    __slots__ = ("_average_ns", "_backlog", "_backoff", "_is_allowed", "_next_backoff")

    def __init__(self) -> None:
        self._is_allowed = _may_spin()
        self._average_ns = 10 * _MAX_WAIT_NS  # how long it takes, as a moving average
        self._backlog = 0  # for so many times
        self._backoff = 0  # so many times more it is not tried
        self._next_backoff = _MIN_BACKOFF

    def wait(
        self,
        ask: Callable[[], Optional[_Thing]],  # noqa: UP045
        sleep: Callable[[], Optional[_Thing]],  # noqa: UP045
        batch_size: int = 0,
    ) -> Optional[_Thing]:  # noqa: UP045
        """Waits for a thing.

        Args:
            ask: Returns it, or None where it has not come yet.
            sleep: Waits for it asleep; may give up.
            batch_size: Number of requests in the previous batch. After a large one, clients wait in line, and for a
                while the processor has better things to do than to spin.

        Returns:
            The thing, or None where ``sleep`` gave up.
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
                    thing = self._spin(ask, begin)
                finally:
                    _spinning.release()
        if thing is None:
            thing = sleep()
        waited = min(time.monotonic_ns() - begin, 10 * _MAX_WAIT_NS)
        self._average_ns += (waited - self._average_ns) >> 3
        return thing

    def _spin(self, ask: Callable[[], Optional[_Thing]], begin: int) -> Optional[_Thing]:  # noqa: UP045
        thing = _ask_until(begin + 2 * self._average_ns + _SLACK_NS, ask)
        if thing is None:
            self._backoff = self._next_backoff
            self._next_backoff = min(2 * self._next_backoff, _MAX_BACKOFF)
        else:
            self._next_backoff = max(self._next_backoff // 2, _MIN_BACKOFF)
        return thing


def _ask_until(end: int, ask: Callable[[], Optional[_Thing]]) -> Optional[_Thing]:  # noqa: UP045
    thing = ask()
    while thing is None and time.monotonic_ns() < end:
        os.sched_yield()  # to whoever has something to do
        thing = ask()
    return thing
