"""Texts of exceptions of user code, whose own methods may raise exceptions in turn."""

from __future__ import annotations

import contextlib
import traceback
from types import TracebackType

MAX_TRACEBACK = 65536
"""The longest traceback that is logged, in characters."""

_MAX_NAME = 100


def name_of(error: BaseException) -> str:
    """Returns the name of an exception's class, in at most 100 characters."""
    try:
        name = type(error).__name__
    except BaseException:  # of a metaclass
        name = type.__dict__["__name__"].__get__(type(error))
    return shortened(name, _MAX_NAME)


def text_of(error: BaseException) -> str:
    """Returns what `str` returns, or why it fails."""
    try:
        return str(error)
    except BaseException as failure:  # including SystemExit
        return f"<no text: {name_of(failure)} in its __str__>"


def summary_of(error: BaseException) -> str:
    """Returns the last lines of an exception's traceback: its class and text, and a syntax error's place."""
    with contextlib.suppress(BaseException):
        lines = "".join(traceback.format_exception_only(type(error), error)).strip()
        return lines.removeprefix(f"{type(error).__module__}.")
    return f"{name_of(error)}: {text_of(error)}"


def traceback_of(error: BaseException, trace: TracebackType | None) -> str:
    """Returns an exception with its traceback, as Python prints it; without its middle if it is long.

    Args:
        error: The exception.
        trace: The traceback, from the first frame to be shown.
    """
    try:
        lines = traceback.format_exception(type(error), error, trace)
    except BaseException:  # of its attributes, which Python looks up
        lines = [f"{name_of(error)}: {text_of(error)}"]
        with contextlib.suppress(BaseException):
            lines = ["Traceback (most recent call last):\n", *traceback.format_tb(trace), *lines]
    return shortened("".join(lines).rstrip(), MAX_TRACEBACK)


def shortened(text: str, most: int) -> str:
    """Returns a text without its middle if it is longer than ``most`` characters.

    Examples:
        >>> shortened("0123456789", 4)
        '01 … [6 characters] … 89'
    """
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … [{len(text) - 2 * half} characters] … {text[-half:]}"
