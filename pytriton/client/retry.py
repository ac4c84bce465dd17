"""Retries of failed requests."""

from __future__ import annotations

import dataclasses
import math
import random

from pytriton.client.exceptions import Failure, PyTritonClientInferenceServerError, PyTritonClientValueError
from pytriton.utils.back_off import BackOff

# Failures of requests that cannot have been executed.
_SAFE = frozenset({Failure.UNREACHABLE, Failure.BUSY})
# Failures of requests that may have been executed.
_UNCERTAIN = frozenset({Failure.LOST})


@dataclasses.dataclass(frozen=True)
class RetryPolicy:
    """Policy for resending requests: which, how often, and after which pauses.

    A request is sent again if it cannot have been executed: the server was unreachable, or rejected it. It is
    never sent again after its timeout, which all attempts share.

    Attributes:
        attempts: The maximum number of attempts, including the first.
        pause_s: Seconds before the second attempt.
        factor: Factor by which each further pause grows.
        max_pause_s: The longest pause, in seconds.
        jitter: The random share of each pause, from 0 to 1, so that clients do not all retry at once.
        resend_lost: Also send a request again if the connection broke before its response was complete. It may then be
            executed twice.

    Raises:
        PyTritonClientValueError: A number is out of its range.

    Examples:
        >>> [RetryPolicy(jitter=0).pause_before(attempt) for attempt in (2, 3, 4)]
        [0.1, 0.2, 0.4]
    """

    attempts: int = 5
    pause_s: float = 0.1
    factor: float = 2.0
    max_pause_s: float = 5.0
    jitter: float = 0.5
    resend_lost: bool = False

    def __post_init__(self) -> None:
        """Checks the values."""
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise PyTritonClientValueError(f"RetryPolicy.attempts is {self.attempts!r}; give an integer from 1.")
        for name, most in (("pause_s", math.inf), ("factor", math.inf), ("max_pause_s", math.inf), ("jitter", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
                upwards = "upwards" if most == math.inf else f"to {most}"
                raise PyTritonClientValueError(f"RetryPolicy.{name} is {value!r}; give a number from 0 {upwards}.")

    def pause_before(self, attempt: int) -> float:
        """Returns the pause before an attempt.

        Args:
            attempt: Its number; the first attempt has no pause.

        Returns:
            Seconds.
        """
        pause_s = BackOff(self.pause_s, self.max_pause_s, self.factor).pause_s(attempt - 1)
        return pause_s * (1 - self.jitter * random.random())

    def allows(self, error: PyTritonClientInferenceServerError) -> bool:
        """Returns whether a request that failed in this way may be sent again."""
        return error.failure in _SAFE or (self.resend_lost and error.failure in _UNCERTAIN)
