"""Messages for the user of a program, which appear even if it has not configured logging."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterable, Mapping
from typing import Any


def tell(logger: logging.Logger, lines: Iterable[str]) -> None:
    """Logs lines as INFO; without any handler, prints them to standard error, where Python would drop them.

    Args:
        logger: Logs the lines, if the program has configured logging.
        lines: The lines.

    Examples:
        >>> tell(logging.getLogger("pytriton.triton"), ["Model Double v1: http://localhost:8000"])
    """
    if logger.hasHandlers():
        for line in lines:
            logger.info("%s", line)
    elif sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it, its disk is full, or it is closed
            print(*lines, sep="\n", file=sys.stderr, flush=True)


def log_safely(
    logger: logging.Logger,
    level: int,
    message: str,
    *args: object,
    exc_info: Any = None,
    extra: Mapping[str, object] | None = None,
) -> None:
    """Logs a message, for a thread that must continue even if the program's logging raises an exception.

    It does so on a standard error stream that is closed, for example, or for an exception that cannot be shown.

    Args:
        logger: The logger.
        level: The message's level.
        message: The message, a format.
        args: Its arguments.
        exc_info: As for `logging.Logger.log`.
        extra: As for `logging.Logger.log`.
    """
    with contextlib.suppress(Exception):
        logger.log(level, message, *args, exc_info=exc_info, extra=extra)


def is_interactive() -> bool:
    """Returns whether a person types the program: in a notebook, in IPython, or at Python's prompt."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return hasattr(sys, "ps1") or (get_ipython is not None and get_ipython() is not None)
