"""Deadlines and timeouts."""

from __future__ import annotations

import math
import numbers
import time
from typing import Any

from pytriton.client.exceptions import PyTritonClientTimeoutError, PyTritonClientValueError

_LONGEST_S = 1e8  # three years; longer waits overflow in some libraries


def in_seconds(timeout_s: float) -> str:
    """Formats a time for messages."""
    return f"{round(timeout_s, 3):g} s"


class Deadline:
    """The time by which an operation must be complete.

    Args:
        timeout_s: How long it may take, in seconds.
        what: The operation, at the start of the error message.
        started: The start, a `time.monotonic`; now by default.
    """

    def __init__(self, timeout_s: float, what: str, started: float | None = None) -> None:
        """Starts the clock."""
        self.timeout_s = timeout_s
        self._what = what
        self._end = (time.monotonic() if started is None else started) + timeout_s

    def left_s(self) -> float:
        """Returns the seconds that are left.

        Raises:
            PyTritonClientTimeoutError: No time is left.
        """
        left_s = self._end - time.monotonic()
        if left_s <= 0:
            raise self.error()
        return left_s

    def remaining_s(self) -> float:
        """Returns the seconds that are left, at least 0."""
        return max(0.0, self._end - time.monotonic())

    def waited_s(self) -> float:
        """Returns the seconds that have passed."""
        return self.timeout_s - (self._end - time.monotonic())

    def passed(self) -> bool:
        """Returns whether the deadline has passed."""
        return time.monotonic() >= self._end

    def error(self, why: str = "") -> PyTritonClientTimeoutError:
        """Returns the error to raise when no time is left."""
        return PyTritonClientTimeoutError(f"{self._what} took longer than {in_seconds(self.timeout_s)}{why}.")


def check_timeout(what: str, timeout_s: Any) -> float:
    """Checks a timeout from the user.

    Args:
        what: Its name in the message.
        timeout_s: Its value.

    Returns:
        The timeout, limited to the largest possible one.

    Raises:
        PyTritonClientValueError: It is not a positive number.
    """
    is_number = isinstance(timeout_s, numbers.Real) and not isinstance(timeout_s, bool)
    seconds = float(timeout_s) if is_number else math.nan
    if not 0 < seconds < math.inf:
        raise PyTritonClientValueError(f"{what} is {timeout_s!r}; give a positive number of seconds.")
    return min(seconds, _LONGEST_S)
