"""JSON logs: one valid line for any record."""

from __future__ import annotations

import json
import logging
import math
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytriton import json_logs
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.json_logs import JSONFormatter, about, relay

BASE = {"timestamp", "level", "logger", "message", "file", "line", "process"}

texts = st.text(st.characters())  # surrogates and control characters among them
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(texts | st.integers(), inner) | st.tuples(inner),
    max_leaves=10,
)


class Unprintable:
    def __str__(self):
        raise ValueError("no text")

    __repr__ = __str__


@pytest.fixture(autouse=True)
def contexts_are_as_before():
    before = json_logs._collecting
    yield
    json_logs._collecting = before


@pytest.fixture
def log():
    """A logger, and the lines that it has written."""
    logger = logging.Logger("mine")
    lines = []

    class Lines(logging.Handler):
        def emit(self, record):
            lines.append(self.format(record))

    handler = Lines()
    handler.setFormatter(JSONFormatter())
    logger.addHandler(handler)
    return logger, lines


def record_of(message="text", arguments=(), error=None, **extra):
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("mine", logging.INFO, "a.py", 3, message, arguments, exc_info)
    record.__dict__.update(extra)
    return record


def entry_of(record):
    line = JSONFormatter().format(record)
    assert len(line.splitlines()) == 1
    line.encode("ascii")
    entry = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    json.dumps(entry, ensure_ascii=False).encode()  # no lone surrogates
    return entry


@given(texts)
def test_any_message_is_one_line(message):
    entry = entry_of(record_of("%s", (message,)))
    assert entry["message"] == message.encode("utf-8", "backslashreplace").decode()
    assert set(entry) == BASE


@given(texts, texts)
def test_any_exception_is_one_line_with_its_whole_traceback(text, message):
    try:
        raise ValueError(text)
    except ValueError as error:
        entry = entry_of(record_of("%s", (message,), error))
    assert entry["exception"].startswith("Traceback (most recent call last):\n")
    assert "ValueError" in entry["exception"]


@settings(max_examples=50)
@given(st.dictionaries(texts, values), values, values)
def test_a_record_with_any_attributes_is_one_line(extra, message, argument):
    record = record_of(message, (argument,))
    record.__dict__.update((name, value) for name, value in extra.items() if name not in record.__dict__)
    assert set(entry_of(record)) >= BASE


@pytest.mark.parametrize("created", [math.nan, math.inf, -1e30, None, "now"])
def test_an_invalid_time_does_not_fail(created):
    record = record_of()
    record.created = created
    assert entry_of(record)["message"] == "text"


def test_objects_that_cannot_be_printed_are_named(log):
    class OddError(Exception):
        __str__ = Unprintable.__str__

    endless = []
    endless.append(endless)
    extra = {"one": Unprintable(), "endless": endless, "huge": 10**5000, "big": 2**60, "nan": math.nan}
    entry = entry_of(record_of(Unprintable(), (1,), OddError(), **extra))
    assert "Unprintable" in entry["message"]
    assert entry["one"] == "<Unprintable without a text: ValueError>"
    assert entry["big"] == str(2**60)
    assert entry["nan"] == "nan"
    assert "Odd" in entry["exception"]


def test_the_keys_of_a_record():
    entry = entry_of(record_of("%d of %s", (1, "x"), user="me", level="other"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry["timestamp"])
    assert next(iter(entry)) == "timestamp"
    assert {name: entry[name] for name in ("level", "logger", "message", "file", "line", "user")} == {
        "level": "INFO",
        "logger": "mine",
        "message": "1 of x",
        "file": "a.py",
        "line": 3,
        "user": "me",
    }


def test_mismatched_arguments_are_shown():
    assert entry_of(record_of("%d", ("x",)))["message"] == "%d (arguments: ('x',))"


def test_a_stack_is_kept(log):
    logger, lines = log
    logger.info("here", stack_info=True)
    assert "test_a_stack_is_kept" in json.loads(lines[0])["stack"]


def test_records_are_about_a_context(log):
    class Broken:
        def fields(self):
            raise RuntimeError

    class Double:
        def fields(self):
            return {"model": "Double", "request_id": "7"}

    logger, lines = log
    with about(Double()):
        logger.info("inside")
        logger.info("of another", extra={"model": "Other"})
    logger.info("outside")
    with about(Broken()):
        logger.info("broken")
    inside, of_another, outside, broken = map(json.loads, lines)
    assert (inside["model"], inside["request_id"]) == ("Double", "7")
    assert of_another["model"] == "Other"
    assert set(outside) == set(broken) == BASE


def test_records_name_the_current_span(log):
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    logger, lines = log
    with sdk.TracerProvider().get_tracer("tests").start_as_current_span("work") as span:
        logger.info("inside")
    logger.info("outside")
    inside, outside = map(json.loads, lines)
    assert inside["trace_id"] == f"{span.get_span_context().trace_id:032x}"
    assert inside["span_id"] == f"{span.get_span_context().span_id:016x}"
    assert set(outside) == BASE


@settings(max_examples=50)
@given(texts, st.dictionaries(st.sampled_from(["model", "request_id", "trace_id"]), st.text("abc")))
def test_a_relayed_record_is_unchanged(message, extra):
    try:
        raise ValueError("no luck")
    except ValueError as error:
        record = record_of("%s", (message,), error, **extra)
    record.name, record.process = "pytriton.tests.relayed", 77
    line = JSONFormatter().format(record)
    relayed = []
    logger = logging.getLogger("pytriton.tests.relayed")
    handler = logging.Handler()
    handler.emit = lambda each: relayed.append(JSONFormatter().format(each))
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    try:
        relay(line, logging.getLogger("pytriton.tests.output"), logging.INFO)
    finally:
        logger.removeHandler(handler)
    assert list(map(json.loads, relayed)) == [json.loads(line)]


@pytest.mark.parametrize(
    "line",
    [
        "plain text",
        '{"timestamp":',
        '{"timestamp":1}',
        '{"timestamp":"2026-01-01T00:00:00.000Z"}',
        '{"timestamp":"x","level":"INFO","logger":"a","message":"b"}',
        '{"timestamp":"2026-01-01T00:00:00.000Z","level":[],"logger":"a","message":"b","line":"x"}',
    ],
)
def test_lines_that_are_not_records_become_messages(log, line):
    logger, lines = log
    relay(f"{line}\n\n", logger, logging.WARNING, model="Double")
    (entry,) = map(json.loads, lines)
    assert (entry["message"], entry["level"], entry["model"]) == (line, "WARNING", "Double")
    assert "file" not in entry


@pytest.mark.parametrize(
    ("format_name", "level", "wrong"),
    [("xml", "", "PYTRITON_LOG_FORMAT is 'xml'"), ("json", "LOUD", "PYTRITON_LOG_LEVEL: 'LOUD' is not a log level")],
)
def test_an_unknown_format_or_level_is_refused(monkeypatch, format_name, level, wrong):
    monkeypatch.setenv("PYTRITON_LOG_FORMAT", format_name)
    monkeypatch.setenv("PYTRITON_LOG_LEVEL", level)
    with pytest.raises(PyTritonBadParameterError, match=wrong):
        json_logs.follow_environment()


def test_the_default_format_is_text(monkeypatch):
    monkeypatch.delenv("PYTRITON_LOG_FORMAT", raising=False)
    assert not json_logs.follow_environment()
    assert json_logs.environment() == {}
    assert sys.excepthook is not json_logs._log_uncaught


def test_further_items_may_have_keys_that_are_no_text():
    record = record_of()
    record.__dict__[3] = 4
    assert entry_of(record)["3"] == 4


UNRAISABLE = """
from pytriton.json_logs import log_as_json

log_as_json()


class Broken:
    def __del__(self):
        raise ValueError("on purpose")


Broken()
"""


def test_an_exception_that_cannot_be_raised_is_logged():
    done = subprocess.run([sys.executable, "-c", UNRAISABLE], capture_output=True, text=True, check=True, timeout=60)
    [line] = done.stderr.splitlines()
    entry = json.loads(line)
    assert entry["level"] == "ERROR"
    assert "Broken.__del__" in entry["message"]
    assert "ValueError: on purpose" in entry["exception"]
