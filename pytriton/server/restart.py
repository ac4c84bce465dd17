"""The policy by which a server that exited unexpectedly is restarted."""

from __future__ import annotations

import collections
import time

from pytriton.utils.back_off import BackOff

PERIOD_S = 600.0
"""The time over which restarts are counted."""

DEFAULT_LIMIT = 120
"""Restarts within `PERIOD_S` after which the server stays down."""

FAILED_STARTS = 5
"""Consecutive failed starts after which the server stays down."""

_BACK_OFF = BackOff(first_s=0.2, max_s=5.0)


class RestartPolicy:
    """Decides whether and when the server is restarted.

    The first restart is immediate. If starts fail in a row, each is preceded by a longer pause than the one before.

    Args:
        limit: Restarts within `PERIOD_S` after which the server stays down.

    Examples:
        >>> policy = RestartPolicy(limit=1)
        >>> policy.next_pause_s()
        0.0
        >>> policy.next_pause_s() is None
        True
    """

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.restarts = 0
        """Number of restarts of the server."""
        self._limit = limit
        self._times: collections.deque[float] = collections.deque()
        self._failed_starts = 0

    def next_pause_s(self) -> float | None:
        """Returns the pause in seconds before the next start; None if the server must stay down."""
        now = time.monotonic()
        while self._times and now - self._times[0] > PERIOD_S:
            self._times.popleft()
        if len(self._times) >= self._limit or self._failed_starts >= FAILED_STARTS:
            return None
        self._times.append(now)
        self.restarts += 1
        self._failed_starts += 1
        return _BACK_OFF.pause_s(self._failed_starts - 1) if self._failed_starts > 1 else 0.0

    def note_ready(self) -> None:
        """Notes that the start has succeeded."""
        self._failed_starts = 0
