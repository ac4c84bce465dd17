"""The server's log."""

from __future__ import annotations

import datetime
import logging
import sys
from types import FrameType
from typing import Any

from pytriton.exceptions import PyTritonError
from pytriton.proxy.wire import service as wire
from pytriton.python_backend.errors import TritonModelException
from pytriton.python_backend.server import server_client

_LETTERS = "IWEV"


LogLevel = wire.LogLevel


class Logger:
    """Writes to the server's log, with the file and the line of the caller; without a server, to stderr.

    Examples:
        >>> Logger.log_info("the weights are loaded")  # doctest: +SKIP
    """

    LogLevel = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: int = INFO) -> None:
        """Writes a line.

        Args:
            message: What to write.
            level: ``Logger.INFO``, ``WARNING``, ``ERROR`` or ``VERBOSE``; the last is written if the server runs with
                ``--log-verbose``.

        Raises:
            TritonModelException: There is no such level.
        """
        if level not in (Logger.INFO, Logger.WARNING, Logger.ERROR, Logger.VERBOSE):
            raise TritonModelException(f"{level!r} is not a level: use Logger.INFO, WARNING, ERROR or VERBOSE")
        _write(level, message, sys._getframe(1))

    @staticmethod
    def log_info(message: str) -> None:
        """Writes an informational message."""
        _write(Logger.INFO, message, sys._getframe(1))

    @staticmethod
    def log_warn(message: str) -> None:
        """Writes a warning."""
        _write(Logger.WARNING, message, sys._getframe(1))

    @staticmethod
    def log_error(message: str) -> None:
        """Writes an error message."""
        _write(Logger.ERROR, message, sys._getframe(1))

    @staticmethod
    def log_verbose(message: str) -> None:
        """Writes a verbose message."""
        _write(Logger.VERBOSE, message, sys._getframe(1))


def _write(level: int, message: Any, caller: FrameType) -> None:
    text = message.decode(errors="backslashreplace") if isinstance(message, bytes) else str(message)
    file, line = caller.f_code.co_filename.rpartition("/")[2], caller.f_lineno
    try:
        server_client().log(LogLevel(level), text, file, line)
    except (TritonModelException, PyTritonError, ImportError):  # there is no server, or this is a fork
        print(f"{_LETTERS[level]} {file}:{line}] {text}", file=sys.stderr, flush=True)


def log_to_server() -> None:
    """Makes warnings of this package, and of a model that does not configure logging, lines of the server's log."""
    formatter = _ServerFormatter()
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(formatter)
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logger = logging.getLogger("pytriton")
    logger.addHandler(handler)
    logger.propagate = False


class _ServerFormatter(logging.Formatter):
    """Formats records as lines of the server's log, so that whoever reads it finds their levels."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record).replace("\\", "\\\\").replace("\n", "\\n")
        letter = "E" if record.levelno >= logging.ERROR else "W" if record.levelno >= logging.WARNING else "I"
        moment = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
        return f'{letter}{moment:%m%d %H:%M:%S.%f} {record.process} {record.filename}:{record.lineno}] "{text}"'
