"""Standard output of the commands."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from pytriton.exceptions import PyTritonRuntimeError


class OutputError(PyTritonRuntimeError):
    """Standard output cannot be written, because its disk is full for example."""


class ReaderGoneError(Exception):
    """Nobody reads standard output any more, as after ``| head -1``: the command ends, without a message."""


def show(text: str) -> None:
    """Prints what a command was asked for, at once.

    Args:
        text: The text.

    Raises:
        ReaderGoneError: Nobody reads it.
        OutputError: It cannot be written.
    """
    with _errors_of_output():
        print(text, flush=True)


def announce(text: str) -> None:
    """Prints what a command that serves tells its user; it serves even if nobody reads that."""
    with contextlib.suppress(ReaderGoneError, OutputError):
        show(text)


def flush() -> None:
    """Writes what a program has printed.

    Raises:
        ReaderGoneError: Nobody reads it.
        OutputError: It cannot be written.
    """
    if sys.stdout is not None:
        with _errors_of_output():
            sys.stdout.flush()


@contextlib.contextmanager
def _errors_of_output() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Python keeps what it could not write, and would fail again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise ReaderGoneError from error
        raise OutputError(f"Standard output cannot be written: {error.strerror}.") from error
