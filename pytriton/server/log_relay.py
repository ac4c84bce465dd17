"""Passes the server's output to the log, which does not block the server."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading

from pytriton.server.log import LOGGER, ServerLog
from pytriton.utils.console import log_safely

_MAX_LINES = 1000
_PATIENCE_S = 1.0  # for the next line, when so many wait to be logged
_DROPPED = "%d lines of the server are missing here: the program's log took no lines for a while."


class LogRelay:
    """Logs lines in a thread of its own, in order.

    A log that takes no lines, such as a pipe that nobody reads, would block the server as soon as the pipe of its
    output is full. So further lines are dropped then; their number is logged when it takes lines again.

    Args:
        log: The log.
    """

    def __init__(self, log: ServerLog) -> None:
        """Starts nothing."""
        self._log = log
        self._lines: queue.Queue[str | int | None] = queue.Queue(_MAX_LINES)  # a number is that of dropped lines
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="pytriton-server-log", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def write(self, line: str) -> None:
        """Logs a line, or drops it."""
        try:
            if self._dropped:
                self._lines.put_nowait(self._dropped)
                self._dropped = 0
            self._lines.put(line, timeout=_PATIENCE_S)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Waits until the lines are logged, and ends the thread, if it was started."""
        if self._dropped:
            self._lines.put(self._dropped)
        self._lines.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            if isinstance(line, int):
                log_safely(LOGGER, logging.WARNING, _DROPPED, line)
            else:
                with contextlib.suppress(Exception):  # in the program's logging; it must not end the thread
                    self._log.write(line)
