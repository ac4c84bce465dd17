"""Sending a request again."""

from __future__ import annotations

import dataclasses
import random

from pytriton.client.exceptions import Failure, PyTritonClientInferenceServerError

# What cannot have been executed.
_SAFE = frozenset({Failure.UNREACHABLE, Failure.BUSY})
# What may have been.
_UNCERTAIN = frozenset({Failure.LOST})


@dataclasses.dataclass(frozen=True)
class RetryPolicy:
    """Which requests are sent again, how often, and after which pauses.

    A request is sent again when it cannot have been executed: nobody listened, or the server answered that it takes
    none now. It is never sent again once its timeout has passed, and all attempts together stay within that timeout.

    Attributes:
        attempts: How often a request is sent at most, the first time included.
        pause_s: Seconds before the second attempt.
        factor: Each further pause is that many times as long.
        max_pause_s: The longest pause, in seconds.
        jitter: Share of each pause that is random, from 0 to 1, so that clients do not come back all at once.
        resend_lost: Also send a request again when the connection broke before its answer was complete. It may then be
            executed twice.

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

    def pause_before(self, attempt: int) -> float:
        """How long to wait before an attempt.

        Args:
            attempt: Its number; the second is the first that has a pause.

        Returns:
            Seconds.
        """
        try:
            pause_s = min(self.max_pause_s, self.pause_s * self.factor ** (attempt - 2))
        except OverflowError:
            pause_s = self.max_pause_s
        return pause_s * (1 - self.jitter * random.random())

    def allows(self, error: PyTritonClientInferenceServerError) -> bool:
        """Whether a request that ended like that may be sent again."""
        return error.failure in _SAFE or (self.resend_lost and error.failure in _UNCERTAIN)
