"""Converts the server's log lines to records of Python's logging."""

from __future__ import annotations

import collections
import logging
import re
import threading

from pytriton.json_logs import is_record, relay

LOGGER = logging.getLogger("pytriton.server.tritonserver")

_LEVELS = {"I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL, "V": logging.DEBUG}
# By default, or with ``--log-format=ISO8601``.
_LINE = re.compile(
    r"(?:(?P<level>[IWEFV])\d{4} \d{2}:\d{2}:\d{2}\.\d+|\d{4}-\d{2}-\d{2}T[\d:.]+Z (?P<iso_level>[IWEFV]))"
    r" (?P<process>\d+) (?P<file>\S+):(?P<number>\d+)\] (?P<text>.*)",
    re.DOTALL,
)
# Logged at every start on a machine without a GPU; not a warning for those who do not need one.
_NO_GPU = ("CUDA", "Cuda", "NVML", "DCGM", "GPU metrics", "pinned")
_OF_BACKEND = ("model '", "tensors of a GPU")  # errors of callables, and messages of the backend itself
# Logged at ERROR, but harmless: for every model sent through the repository API; for errors and empty outputs of a
# model with a response cache, which are not cached; and at exit, while clients keep streams open.
_HARMLESS = re.compile(
    "Failed to set config modification time|Failed to insert key .* was nullptr"
    "|failed to stop server: Internal - Exit timeout expired"
)
_TABLE = ("+-", "| ")  # the beginnings of rows in tables that the server prints below an empty message
_TRACEBACK = "Traceback (most recent call last):"
_BACKEND = "pytriton"  # the source of the proxy backend's lines
_FRAME = re.compile(r" ?\d+# ")  # of the stack of a server that crashes
_TAIL_LINES = 20
_DROPPED = re.compile(r"\x1b\[[0-9;]*m|\r")  # colors of the HTTP front end's library, and returns of progress bars
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but the tab and the line end
_INDENT = "    "
# Why a model's folder cannot be read, and, in a line before, where its config.pbtxt is wrong.
_POLL_FAILURE = re.compile(r"Poll failed for model directory '(?P<model>[^']+)': (?P<reason>.*)")
_CONFIG_ERROR = re.compile(r"parsing text-format inference\.ModelConfig: (?P<line>\d+):(?P<column>\d+): (?P<why>.*)")


class ServerLog:
    """Logs the server's output line by line.

    Records go to the logger ``pytriton.server.tritonserver`` at the server's level, with its source file and line.
    Models print to the same output; their lines are logged as INFO. Some messages of the server contain text of a
    client. It can neither begin a line of the log, as their further lines are indented, nor control a terminal.
    """

    def __init__(self) -> None:
        """Creates an empty log."""
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._is_table = False
        self._traceback = _Traceback()
        self._changed = threading.Condition()
        self._poll_failures: dict[str, str] = {}
        self._config_error = ""

    def write(self, line: str) -> None:
        """Logs one line."""
        line = _printable(line.rstrip("\n"))
        match = _LINE.fullmatch(line)
        self._note_failure(line if match is None else _unquoted(match["text"]))
        begins_table = match is not None and not match["text"]
        self._is_table = begins_table or (self._is_table and line.startswith(_TABLE))
        if not line or begins_table:
            return
        if not self._is_table and not _FRAME.match(line):
            self._tail.append(line)
        if is_record(line):  # from a worker process, which shares the server's output
            relay(line, LOGGER, logging.INFO)
        elif match is not None:
            self._traceback.begin(match)
            _log_own(match)
        else:
            level = self._traceback.level_of(line)
            _log(logging.DEBUG if self._is_table else level, line)

    def _note_failure(self, line: str) -> None:
        if (error := _CONFIG_ERROR.search(line)) is not None:
            self._config_error = f" (line {error['line']}, column {error['column']}: {error['why'].rstrip('.')})"
        elif (failure := _POLL_FAILURE.search(line)) is not None:
            with self._changed:
                self._poll_failures[failure["model"]] = failure["reason"] + self._config_error
                self._changed.notify_all()
            self._config_error = ""

    def poll_failure(self, model: str, timeout_s: float) -> str:
        """Waits for the reason why the server cannot read a model's folder; empty if it gives none in time."""
        with self._changed:
            self._changed.wait_for(lambda: model in self._poll_failures, timeout_s)
            return self._poll_failures.pop(model, "")

    def tail(self) -> str:
        """Returns the last lines, for an error message."""
        return "\n".join(self._tail)


class _Traceback:
    """Finds an unquoted traceback below a line of the proxy backend.

    Servers older than the bundled one may write a message of several lines as it is; others quote it, in one line.
    """

    def __init__(self) -> None:
        """Starts outside a traceback."""
        self._level = logging.INFO
        self._may_begin = self._is_inside = False

    def begin(self, match: re.Match[str]) -> None:
        """Notes a line of the server that has a level."""
        self._level = _level_of(match)
        self._is_inside = match["file"] == _BACKEND and match["text"] == _TRACEBACK
        self._may_begin = match["file"] == _BACKEND and not match["text"].startswith('"')

    def level_of(self, line: str) -> int:
        """Returns the level of a line without one."""
        belongs = self._is_inside or (self._may_begin and line == _TRACEBACK)
        self._is_inside = belongs and (line == _TRACEBACK or line.startswith(" "))
        self._may_begin = False
        return self._level if belongs else logging.INFO


def _log_own(match: re.Match[str]) -> None:
    """Logs a line of the server itself, or of a model that logs through it."""
    text, level = _printable(_unquoted(match["text"])), _level_of(match)
    of_model = match["file"].endswith(".py")
    if match["file"] != _BACKEND and not of_model:  # both log tracebacks, which stay as they are
        text = text.replace("\n", f"\n{_INDENT}")
    if not of_model:  # whose own levels are kept
        if _HARMLESS.match(text):
            level = logging.DEBUG
        elif not text.startswith(_OF_BACKEND) and any(word in text for word in _NO_GPU):
            level = min(level, logging.INFO)
    if text:
        _log(level, text, match["file"], int(match["number"]), int(match["process"]))


def _log(level: int, text: str, file: str = "", number: int = 0, process: int | None = None) -> None:
    if LOGGER.isEnabledFor(level):
        record = LOGGER.makeRecord(LOGGER.name, level, file, number, "%s", (text,), None)
        record.process = process or record.process
        LOGGER.handle(record)


def _level_of(match: re.Match[str]) -> int:
    return _LEVELS[match["level"] or match["iso_level"]]


def _printable(text: str) -> str:
    """Removes colors and carriage returns, and writes other control characters as escapes."""
    return _CONTROL.sub(lambda control: f"\\x{ord(control[0]):02x}", _DROPPED.sub("", text))


def _unquoted(text: str) -> str:
    r"""Removes the quotes of a message, and restores its line ends, written as ``\n``."""
    if len(text) < 2 or not (text[0] == text[-1] == '"'):
        return text
    try:
        return text[1:-1].encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError:
        return text[1:-1]
