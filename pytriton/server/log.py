"""Converts the server's log lines to records of Python's logging."""

from __future__ import annotations

import collections
import logging
import re

from pytriton.json_logs import is_record, relay

LOGGER = logging.getLogger("pytriton.server.tritonserver")

_LEVELS = {"I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL, "V": logging.DEBUG}
# By default, or with ``--log-format=ISO8601``.
_LINE = re.compile(
    r"(?:(?P<level>[IWEFV])\d{4} \d{2}:\d{2}:\d{2}\.\d+|\d{4}-\d{2}-\d{2}T[\d:.]+Z (?P<iso_level>[IWEFV]))"
    r" (?P<process>\d+) (?P<file>\S+):(?P<number>\d+)\] (?P<text>.*)",
    re.DOTALL,
)
# What the server logs at every start on a machine without a GPU; not a warning for those who need none.
_NO_GPU = ("CUDA", "Cuda", "NVML", "DCGM", "GPU metrics", "pinned")
_OF_BACKEND = ("model '", "tensors of a GPU")  # errors of callables, and what the backend itself says
# Logged at ERROR, but harmless: for every model that is sent through the repository API; for errors and empty
# outputs of a model with a response cache, which it does not keep; and at the end, while clients keep streams open.
_HARMLESS = re.compile(
    "Failed to set config modification time|Failed to insert key .* was nullptr"
    "|failed to stop server: Internal - Exit timeout expired"
)
_TABLE = ("+-", "| ")  # of settings, and of models
_FRAME = re.compile(r" ?\d+# ")  # of the stack of a server that crashes
_TAIL_LINES = 20


class ServerLog:
    """Logs the server's output line by line.

    Records go to the logger ``pytriton.server.tritonserver`` at the server's level, with its source file and line.
    """

    def __init__(self) -> None:
        """Starts without lines."""
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._level = logging.INFO

    def write(self, line: str) -> None:
        """Logs one line."""
        line = line.rstrip("\n")
        if not line:
            return
        if not line.startswith(_TABLE) and not _FRAME.match(line):
            self._tail.append(line)
        if is_record(line):  # of a worker process, whose output is the server's
            relay(line, LOGGER, self._level)
            return
        match = _LINE.fullmatch(line)
        file, number, process = "", 0, None
        if match is not None:
            self._level = _LEVELS[match["level"] or match["iso_level"]]
            file, number, process = match["file"], int(match["number"]), int(match["process"])
            line = _unquoted(match["text"])
        level = self._level
        if line.startswith(_TABLE) or _HARMLESS.match(line):
            level = logging.DEBUG
        elif not line.startswith(_OF_BACKEND) and any(word in line for word in _NO_GPU):
            level = min(level, logging.INFO)
        if line and LOGGER.isEnabledFor(level):
            record = LOGGER.makeRecord(LOGGER.name, level, file, number, "%s", (line,), None)
            record.process = process or record.process
            LOGGER.handle(record)

    def tail(self) -> str:
        """Returns the last lines, for an error message."""
        return "\n".join(self._tail)


def _unquoted(text: str) -> str:
    r"""Removes the quotes of a message, and restores its line ends, written as ``\n``."""
    if len(text) < 2 or not (text[0] == text[-1] == '"'):
        return text
    try:
        return text[1:-1].encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError:
        return text[1:-1]
