"""Checks of numbers that users give, among which a bool does not count."""

from __future__ import annotations

import math
from typing import TypeGuard


def is_integer(value: object) -> TypeGuard[int]:
    """Returns whether a value is an integer."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Returns whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
