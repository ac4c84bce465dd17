"""Exponential back-off."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class BackOff:
    """Pauses between attempts, each longer than the one before.

    Attributes:
        first_s: The first pause in seconds.
        max_s: The longest pause in seconds.
        factor: By how much each pause is longer than the one before.

    Examples:
        >>> [BackOff(0.1, 0.5).pause_s(number) for number in (1, 2, 3, 4)]
        [0.1, 0.2, 0.4, 0.5]
    """

    first_s: float
    max_s: float
    factor: float = 2.0

    def pause_s(self, number: int) -> float:
        """Returns the length of a pause in seconds.

        Args:
            number: Which pause it is, from 1.
        """
        try:
            return min(self.max_s, self.first_s * self.factor ** (number - 1))
        except OverflowError:
            return self.max_s
