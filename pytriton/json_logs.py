"""Logs as JSON: one object per line, with the request and the model that the record is about."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import math
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Protocol

from pytriton.exceptions import PyTritonBadParameterError

FORMAT_VARIABLE = "PYTRITON_LOG_FORMAT"
"""The environment variable that switches JSON on (``json``) or off (``text``)."""

LEVEL_VARIABLE = "PYTRITON_LOG_LEVEL"
"""The environment variable with the level that `log_as_json` sets."""

FORMATS = ("text", "json")

LOGGER = logging.getLogger("pytriton")

_MAX_DEPTH = 8
_MAX_EXACT = 1 << 53  # a reader may hold numbers as doubles
_OWN_ATTRIBUTES = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}
_FIRST_KEY = '{"timestamp":'


class Context(Protocol):
    """The request, or the batch of requests, that this thread or task is serving."""

    def fields(self) -> Mapping[str, Any]:
        """Returns the keys that it adds to a record: ``model``, ``request_id`` and so on."""


CONTEXT: ContextVar[Context | None] = ContextVar("pytriton_log_context", default=None)
"""What the records of this thread or task are about; set only while `is_collecting` is true."""

_collecting = False
_enabled = False
_lock = threading.Lock()


def is_collecting() -> bool:
    """Returns whether there is a `JSONFormatter`, which needs contexts."""
    return _collecting


class JSONFormatter(logging.Formatter):
    """Formats any record as one line of JSON.

    The keys are ``timestamp`` (UTC, ISO 8601, with milliseconds), ``level``, ``logger``, ``message``, ``file``,
    ``line`` and ``process``; ``exception`` is a whole traceback, and ``stack`` that of ``stack_info``. Within an
    inference callable, there are ``model``, ``model_version``, and ``request_id`` or, for a batch of several requests,
    ``request_ids``; within a span of OpenTelemetry, ``trace_id`` and ``span_id``. The items of a logging call's
    ``extra`` are keys, too.

    Examples:
        >>> handler = logging.StreamHandler()
        >>> handler.setFormatter(JSONFormatter())
    """

    def __init__(self) -> None:
        global _collecting
        super().__init__()
        _collecting = True

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line, without a line end."""
        entry: dict[str, Any] = {
            "timestamp": _timestamp(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
        }
        if record.filename:
            entry["file"], entry["line"] = record.filename, record.lineno
        entry["process"] = record.process
        exception = _exception(record)
        if exception:
            entry["exception"] = exception
        if record.stack_info:
            entry["stack"] = record.stack_info
        # Libraries that change how records are made, such as Ray, keep attributes of their own in them.
        further = {
            name: value
            for name, value in record.__dict__.items()
            if name not in _OWN_ATTRIBUTES and not str(name).startswith("_")
        }
        for name, value in {**_context_fields(), **further}.items():
            entry.setdefault(name, value)
        return json.dumps(_plain(entry), separators=(",", ":"), allow_nan=False)


def log_as_json(level: int | str | None = None) -> None:
    """Makes the program, and the processes that it starts, log as JSON on standard error.

    Handlers that write to the console, of any logger, get a `JSONFormatter`; if the program has not configured logging,
    it gets a handler, and the level ``INFO``. Warnings and exceptions that nobody catches are logged, too. The
    environment variable ``PYTRITON_LOG_FORMAT=json`` has the same effect, when a server is started.

    Args:
        level: The level of the root logger; by default, that in ``PYTRITON_LOG_LEVEL``, or as it is.

    Raises:
        PyTritonBadParameterError: There is no such level.

    Examples:
        >>> log_as_json("INFO")  # doctest: +SKIP
    """
    global _enabled
    with _lock:
        root = logging.getLogger()
        is_new = not root.handlers
        wanted = level
        if wanted is None and not _enabled:
            wanted = os.environ.get(LEVEL_VARIABLE) or (logging.INFO if is_new else None)
        if wanted is not None:
            try:
                root.setLevel(wanted.upper() if isinstance(wanted, str) else wanted)
            except (TypeError, ValueError) as error:
                variable = f"{LEVEL_VARIABLE}: " if level is None else ""
                raise PyTritonBadParameterError(
                    f"{variable}{wanted!r} is not a log level; use DEBUG, INFO, WARNING, ERROR or CRITICAL."
                ) from error
        if is_new:
            root.addHandler(logging.StreamHandler())
        for handler in _console_handlers():
            if not isinstance(handler.formatter, JSONFormatter):
                handler.setFormatter(JSONFormatter())
        logging.captureWarnings(True)
        if sys.excepthook is sys.__excepthook__:
            sys.excepthook = _log_uncaught
        if sys.unraisablehook is sys.__unraisablehook__:
            sys.unraisablehook = _log_unraisable
        if threading.excepthook is getattr(threading, "__excepthook__", None):  # Python 3.9 has no `__excepthook__`
            threading.excepthook = _log_uncaught_in_thread
        _enabled = True


def is_enabled() -> bool:
    """Returns whether `log_as_json` was called."""
    return _enabled


def environment() -> dict[str, str]:
    """Returns environment variables with which a process that this one starts logs as this one does."""
    if not _enabled:
        return {}
    return {FORMAT_VARIABLE: "json", LEVEL_VARIABLE: logging.getLevelName(logging.getLogger().level)}


def follow_environment() -> bool:
    """Enables JSON logs if the environment requests them.

    Returns:
        Whether it does.

    Raises:
        PyTritonBadParameterError: ``PYTRITON_LOG_FORMAT`` is neither ``json`` nor ``text``, or ``PYTRITON_LOG_LEVEL``
            is not a log level.
    """
    wanted = os.environ.get(FORMAT_VARIABLE) or "text"
    if wanted not in FORMATS:
        raise PyTritonBadParameterError(f"{FORMAT_VARIABLE} is {wanted!r}; use one of {', '.join(FORMATS)}.")
    if wanted == "json":
        log_as_json()
    return wanted == "json"


@contextlib.contextmanager
def about(context: Context) -> Iterator[None]:
    """Sets what the records of this thread or task are about, within a ``with`` block."""
    token: Token[Context | None] = CONTEXT.set(context)
    try:
        yield
    finally:
        CONTEXT.reset(token)


def span_fields(span: Any) -> dict[str, str]:
    """Returns what an OpenTelemetry span adds to a record: ``trace_id`` and ``span_id``; nothing if it is invalid."""
    context = span.get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def relay(text: str, logger: logging.Logger, level: int, **extra: Any) -> None:
    """Logs lines of another process: its log records as they are, and everything else that it prints.

    Args:
        text: The lines.
        logger: Logs the lines that are not records.
        level: The level of those lines.
        extra: Further keys for those lines.
    """
    for line in text.split("\n"):
        record = _record_of(line)
        if record is not None:
            its_logger = logging.getLogger(record.name)
            if its_logger.isEnabledFor(record.levelno):
                its_logger.handle(record)
        elif line.strip() and logger.isEnabledFor(level):
            record = logger.makeRecord(logger.name, level, "", 0, "%s", (line,), None, extra=extra or None)
            logger.handle(record)


def is_record(line: str) -> bool:
    """Returns whether a line looks like one of a `JSONFormatter`."""
    return line.startswith(_FIRST_KEY)


def _record_of(line: str) -> logging.LogRecord | None:
    if not is_record(line):
        return None
    try:
        entry = json.loads(line)
        created = datetime.datetime.fromisoformat(entry.pop("timestamp").replace("Z", "+00:00")).timestamp()
        name, level, message = entry.pop("logger"), entry.pop("level"), entry.pop("message")
        number = logging.getLevelName(level)
        file, number_of_line = str(entry.pop("file", "")), int(entry.pop("line", 0))
        record = logging.LogRecord(
            str(name), number if isinstance(number, int) else logging.INFO, file, number_of_line, "%s", (message,), None
        )
        record.levelname = str(level)
        record.created, record.msecs = created, created % 1 * 1000
        record.process = entry.pop("process", None)
        record.exc_text = entry.pop("exception", None)
        record.stack_info = entry.pop("stack", None)
    except (ValueError, TypeError, KeyError, AttributeError):  # it only looks like one
        return None
    record.__dict__.update((key, value) for key, value in entry.items() if key not in _OWN_ATTRIBUTES)
    return record


def _console_handlers() -> Iterator[logging.Handler]:
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):  # a placeholder has none
            if getattr(handler, "stream", None) in (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__):
                yield handler


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    LOGGER.critical("Uncaught exception; the program exits.", exc_info=(kind, error, trace))


def _log_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Logs an exception that cannot be raised, as of a destructor."""
    error = unraisable.exc_value
    exc_info = None if error is None else (unraisable.exc_type, error, unraisable.exc_traceback)
    LOGGER.error("%s %r.", unraisable.err_msg or "Exception ignored in", unraisable.object, exc_info=exc_info)


def _log_uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    kind, error = arguments.exc_type, arguments.exc_value
    if error is None or issubclass(kind, SystemExit):
        return
    name = None if arguments.thread is None else arguments.thread.name
    LOGGER.critical("Uncaught exception in thread %r.", name, exc_info=(kind, error, arguments.exc_traceback))


def _timestamp(created: float) -> str:
    try:
        moment = datetime.datetime.fromtimestamp(created, datetime.timezone.utc)
    except (OverflowError, ValueError, TypeError, OSError):  # a made-up time
        return _timestamp(0.0)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # its arguments do not fit, or cannot be formatted
        return f"{_text(record.msg)} (arguments: {_text(record.args)})"


def _exception(record: logging.LogRecord) -> str:
    if record.exc_text:
        return record.exc_text
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    try:
        return logging.Formatter().formatException(record.exc_info)
    except Exception:
        return _text(record.exc_info[1])


def _context_fields() -> dict[str, Any]:
    fields: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # a record without them is better than none
        context = CONTEXT.get()
        if context is not None:
            fields.update(context.fields())
    with contextlib.suppress(Exception):
        trace: Any = sys.modules.get("opentelemetry.trace")  # without this import, nothing is traced
        if trace is not None:
            fields.update(span_fields(trace.get_current_span()))
    return fields


def _plain(value: Any, depth: int = 0) -> Any:
    """Converts a value to one that JSON can represent: itself, or its text."""
    if value is None or isinstance(value, bool):
        return value
    if type(value) is str:
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()  # lone surrogates
    if type(value) is int:
        return value if abs(value) < _MAX_EXACT else _text(value)
    if type(value) is float:
        return value if math.isfinite(value) else str(value)
    if depth < _MAX_DEPTH:
        with contextlib.suppress(Exception):
            if isinstance(value, Mapping):
                return {_plain(_text(key)): _plain(each, depth + 1) for key, each in value.items()}
            if isinstance(value, (list, tuple, set, frozenset)):
                return [_plain(each, depth + 1) for each in value]
    return _plain(_text(value))


def _text(value: Any) -> str:
    try:
        return str.__str__(str(value))
    except Exception as failure:
        return f"<{type(value).__name__} without a text: {type(failure).__name__}>"
