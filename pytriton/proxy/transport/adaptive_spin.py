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

_LONGEST_NS = 400_000  # what usually takes longer is slept for
_SLACK_NS = 20_000
_LEAST_REST = 8
_MOST_REST = 1024

_FEW_REQUESTS = 2
_CROWDED_FOR = 32  # batches, of which clients in line fill but some

_Thing = TypeVar("_Thing")

_spinning = threading.Lock()  # held by the one thread that spins: others want the interpreter


def _may_spin() -> bool:
    return os.environ.get("PYTRITON_SPIN") != "0" and len(os.sched_getaffinity(0)) > 1


class Spin:
    """What one waits for again and again, and how long it took. Used by one thread at a time."""

    __slots__ = ("_crowded", "_is_allowed", "_next_rest", "_rest", "_usual_ns")

    def __init__(self) -> None:
        self._is_allowed = _may_spin()
        self._usual_ns = 10 * _LONGEST_NS  # how long it takes, as a moving average
        self._crowded = 0  # for so many times
        self._rest = 0  # so many times more it is not tried
        self._next_rest = _LEAST_REST

    def wait(
        self,
        ask: Callable[[], Optional[_Thing]],  # noqa: UP045
        sleep: Callable[[], Optional[_Thing]],  # noqa: UP045
        met: int = 0,
    ) -> Optional[_Thing]:  # noqa: UP045
        """Waits for a thing.

        Args:
            ask: Returns it, or None where it has not come yet.
            sleep: Waits for it asleep; may give up.
            met: How many requests came together before. Where there were many, clients wait in line, and for a while
                the processor has better things to do than to wait.

        Returns:
            The thing, or None where ``sleep`` gave up.
        """
        if met > _FEW_REQUESTS:
            self._crowded = _CROWDED_FOR
        elif self._crowded:
            self._crowded -= 1
        if self._crowded:
            return sleep()
        begin = time.monotonic_ns()
        thing = None
        if self._usual_ns < _LONGEST_NS and self._is_allowed:
            if self._rest:
                self._rest -= 1
            elif _spinning.acquire(blocking=False):
                try:
                    thing = self._spin(ask, begin)
                finally:
                    _spinning.release()
        if thing is None:
            thing = sleep()
        waited = min(time.monotonic_ns() - begin, 10 * _LONGEST_NS)
        self._usual_ns += (waited - self._usual_ns) >> 3
        return thing

    def expect(self, ask: Callable[[], Optional[_Thing]]) -> Optional[_Thing]:  # noqa: UP045
        """Waits awake, for a while, for a thing that was announced."""
        thing = None
        if self._is_allowed and _spinning.acquire(blocking=False):
            try:
                thing = _ask_until(time.monotonic_ns() + _LONGEST_NS, ask)
            finally:
                _spinning.release()
        return thing

    def _spin(self, ask: Callable[[], Optional[_Thing]], begin: int) -> Optional[_Thing]:  # noqa: UP045
        thing = _ask_until(begin + 2 * self._usual_ns + _SLACK_NS, ask)
        if thing is None:
            self._rest = self._next_rest
            self._next_rest = min(2 * self._next_rest, _MOST_REST)
        else:
            self._next_rest = max(self._next_rest // 2, _LEAST_REST)
        return thing


def _ask_until(end: int, ask: Callable[[], Optional[_Thing]]) -> Optional[_Thing]:  # noqa: UP045
    thing = ask()
    while thing is None and time.monotonic_ns() < end:
        os.sched_yield()  # to whoever has something to do
        thing = ask()
    return thing
