"""Adaptive busy-waiting: polls for a short while before sleeping. Counterpart of ``backend/transport/adaptive_spin.h``.

A sleeping thread runs again only 20 to 50 us after it is woken. For requests that arrive one after another, that is a
large part of their latency.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Optional, TypeVar

from pytriton.proxy.transport.cpu_limit import cpu_limit

_MAX_WAIT_NS = 400_000
_SLACK_NS = 20_000
_LONG_YIELD_NS = 1_000_000
_MIN_BACKOFF = 8
_MIN_CONTENDED_BACKOFF = 32
_MAX_BACKOFF = 1024

_FEW_REQUESTS = 16
_BACKLOG_BATCHES = 256  # batches after a large one, before spinning is tried again

_cpu_limit = functools.cache(cpu_limit)
_shares_cpu_limit = False

_Thing = TypeVar("_Thing")

_spinning: set[AdaptiveSpin] = set()  # of all threads of the process


def share_cpu_limit() -> None:
    """Keeps the threads of this process from spinning under a CPU limit, which other processes use as well."""
    global _shares_cpu_limit
    _shares_cpu_limit = True


def _max_spinning(*, for_reply: bool) -> int:
    """Returns the maximum number of threads of the process that may spin at a time; 0 if none may."""
    processors = len(os.sched_getaffinity(0))
    if processors == 1 or os.environ.get("PYTRITON_SPIN") == "0":
        return 0
    limit = _cpu_limit()
    if limit is not None and limit < processors:
        # Once spinning had used up the limit, the kernel would throttle all threads. It leaves a processor to others,
        # and half of the rest to the server.
        return 0 if _shares_cpu_limit else max(0, int(limit) - 1) // 2
    return processors if for_reply else processors // 2  # a waiting worker must not slow down its callers


class AdaptiveSpin:
    """Waits for a recurring event, and learns how long it takes. Used by one thread at a time.

    Args:
        for_reply: Whether it waits for replies to calls, which take precedence over batches: more threads may spin for
            them.
    """

    __slots__ = ("_average_ns", "_backlog", "_backoff", "_limit", "_next_backoff", "_next_contended_backoff")

    def __init__(self, *, for_reply: bool = False) -> None:
        self._limit = _max_spinning(for_reply=for_reply)
        self._average_ns = 10 * _MAX_WAIT_NS  # moving average of the waiting time
        self._backlog = 0  # remaining waits until the backlog is assumed to be gone
        self._backoff = 0  # remaining waits until spinning is tried again
        self._next_backoff = _MIN_BACKOFF
        self._next_contended_backoff = _MIN_CONTENDED_BACKOFF

    def wait(
        self,
        poll: Callable[[], Optional[_Thing]],  # noqa: UP045
        sleep: Callable[[], Optional[_Thing]],  # noqa: UP045
        batch_size: int = 0,
        linger: Optional[Callable[[int], bool]] = None,  # noqa: UP045
    ) -> Optional[_Thing]:  # noqa: UP045
        """Waits for the event, spinning if that is likely to pay off.

        Args:
            poll: Returns the event, or None if it has not happened yet.
            sleep: Blocks until the event happens; may give up and return None.
            batch_size: Number of requests in the previous batch. After a large one, clients are queueing, and for a
                while the processor has better things to do than to spin.
            linger: Spins without the interpreter until the event may have happened, or until a moment on the clock of
                ``time.monotonic_ns()``. Returns whether other threads have kept the processor for long. Without it,
                this calls ``poll`` repeatedly.

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
        thing = self.spin(poll, begin, linger)
        if thing is None:
            thing = sleep()
        self.learn(begin)
        return thing

    def spin(
        self,
        poll: Callable[[], Optional[_Thing]],  # noqa: UP045
        begin: int,
        linger: Optional[Callable[[int], bool]],  # noqa: UP045
    ) -> Optional[_Thing]:  # noqa: UP045
        """Spins for the event if that is likely to pay off, for callers that do the sleeping.

        Args:
            poll: As for `wait`.
            begin: When the wait began, on the clock of ``time.monotonic_ns()``.
            linger: Spins without the interpreter.

        Returns:
            The event, or None: sleep, and then call `learn`.
        """
        if self._average_ns >= _MAX_WAIT_NS:
            return None
        if self._backoff:
            self._backoff -= 1
            return None
        # Only one thread with the interpreter: nothing else can run Python meanwhile.
        if len(_spinning) >= (min(1, self._limit) if linger is None else self._limit):
            return None
        _spinning.add(self)
        try:
            return self._spin(poll, begin, linger or _yield)
        finally:
            _spinning.discard(self)

    def learn(self, begin: int) -> None:
        """Records the duration of a wait that ends now."""
        waited = min(time.monotonic_ns() - begin, 10 * _MAX_WAIT_NS)
        self._average_ns += (waited - self._average_ns) >> 3

    def _spin(
        self,
        poll: Callable[[], Optional[_Thing]],  # noqa: UP045
        begin: int,
        linger: Callable[[int], bool],
    ) -> Optional[_Thing]:  # noqa: UP045
        end = begin + 2 * self._average_ns + _SLACK_NS
        thing = poll()
        is_contended = False
        while thing is None and not is_contended and time.monotonic_ns() < end:
            is_contended = linger(end)
            thing = poll()
        if is_contended:
            # A thread that sleeps gets the processor from other programs sooner than one that yields it.
            self._backoff = self._next_contended_backoff
            self._next_contended_backoff = min(4 * self._next_contended_backoff, _MAX_BACKOFF)
        elif thing is None:
            self._backoff = self._next_backoff
            self._next_backoff = min(2 * self._next_backoff, _MAX_BACKOFF)
        else:
            self._next_backoff = max(self._next_backoff // 2, _MIN_BACKOFF)
            self._next_contended_backoff = max(self._next_contended_backoff // 2, _MIN_CONTENDED_BACKOFF)
        return thing


def _yield(_: int) -> bool:
    """Yields the processor to any thread that has work to do; returns whether that took long."""
    begin = time.monotonic_ns()
    os.sched_yield()
    return time.monotonic_ns() - begin > _LONG_YIELD_NS
