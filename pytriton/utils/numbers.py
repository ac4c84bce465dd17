"""Checks of numbers that users pass; a bool is not a number."""

from __future__ import annotations

import math
from typing import TypeGuard

from pytriton.exceptions import PyTritonBadParameterError


def is_integer(value: object) -> TypeGuard[int]:
    """Returns whether a value is an integer."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Returns whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_seconds(what: str, value: object) -> None:
    """Checks that an argument is a number of seconds.

    Args:
        what: The argument, as it stands in the message.
        value: Its value.

    Raises:
        PyTritonBadParameterError: It is not.
    """
    if not is_number(value) or value < 0:
        raise PyTritonBadParameterError(f"{what} is {value!r}; use a number of seconds.")
