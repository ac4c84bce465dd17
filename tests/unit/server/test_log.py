from __future__ import annotations

import logging

import pytest

from pytriton.server.log import ServerLog

NAME = "pytriton.server.tritonserver"
SERVER_TABLE = ["I1121 09:41:00.123456 77 server.cc:674] ", "+-------+", "| Model |", "+-------+"]


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG, NAME)
    return ServerLog()


def records(caplog):
    return [(record.levelno, record.getMessage()) for record in caplog.records if record.name == NAME]


@pytest.mark.parametrize(
    ("letter", "level"),
    [
        ("I", logging.INFO),
        ("W", logging.WARNING),
        ("E", logging.ERROR),
        ("F", logging.CRITICAL),
        ("V", logging.DEBUG),
    ],
)
def test_a_line_keeps_the_level_of_the_server(log, caplog, letter, level):
    log.write(f'{letter}1121 09:41:00.123456 77 server.cc:12] "text of it"\n')

    assert records(caplog) == [(level, "text of it")]


@pytest.mark.parametrize(
    "line",
    [
        "hello",
        "  indented",
        '{"timestamp": and no record',
        "Failed to insert key 1, which was nullptr",
        "Traceback (most recent call last):",
    ],
)
@pytest.mark.parametrize(
    "before", ["", 'E1121 09:41:00.123456 77 server.cc:12] "it failed"', "E1121 09:41:00.1 77 a.cc:1] b"]
)
def test_output_of_a_model_is_information_after_any_line_of_the_server(log, caplog, before, line):
    log.write(f"{before}\n")
    caplog.clear()
    log.write(f"{line}\n")

    assert records(caplog) == [(logging.INFO, line)]


@pytest.mark.parametrize("rows", [["+---+", "| a |", "+---+"], ["| a | b |", "| --- | --- |", "| 1 | 2 |"]])
def test_printed_tables_of_a_model_are_information_and_in_the_tail(log, caplog, rows):
    for line in (*SERVER_TABLE, "", *rows):
        log.write(f"{line}\n")

    assert [text for level, text in records(caplog) if level == logging.INFO] == rows
    assert log.tail().splitlines() == rows


def test_a_printed_table_below_a_message_of_the_server_is_information(log, caplog):
    log.write('I1121 09:41:00.123456 77 model_lifecycle.cc:839] "successfully loaded"\n')
    log.write("| a |\n")

    assert records(caplog)[1:] == [(logging.INFO, "| a |")]


@pytest.mark.parametrize("head", [["model 'm': the inference callable failed"], []])
def test_lines_of_a_traceback_of_the_backend_have_its_level(log, caplog, head):
    traceback = [
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "    1 / 0",
        "ZeroDivisionError: no",
    ]
    first, *more = [*head, *traceback]
    for line in (f"E1121 09:41:00.123456 77 pytriton:0] {first}", *more, "printed", *traceback):
        log.write(f"{line}\n")

    errors = [(logging.ERROR, line) for line in (first, *more)]
    assert records(caplog) == [*errors, *((logging.INFO, line) for line in ("printed", *traceback))]


def test_lines_within_a_quoted_message_are_lines_again(log, caplog):
    log.write(r'E1121 09:41:00.123456 77 a.cc:1] "Traceback\n  File \"x.py\"\n\ttab \\ back"')

    assert records(caplog) == [(logging.ERROR, 'Traceback\n      File "x.py"\n    \ttab \\ back')]


@pytest.mark.parametrize("file", ["pytriton", "model.py"])
def test_quoted_tracebacks_are_logged_unchanged(log, caplog, file):
    log.write(rf'E1121 09:41:00.123456 77 {file}:1] "model failed\nTraceback\n  1 / 0"')

    assert records(caplog) == [(logging.ERROR, "model failed\nTraceback\n  1 / 0")]


def test_text_of_a_client_cannot_start_a_log_line(log, caplog):
    log.write(r'W1121 09:41:00.1 77 a.cc:1] "sequence a\n2026-11-21 09:41:01 ERROR root out of memory\r"')

    ((_, text),) = records(caplog)
    assert [line.startswith("    ") for line in text.split("\n")] == [False, True]
    assert "\r" not in text


@pytest.mark.parametrize(
    "line", [r'W1121 09:41:00.1 77 a.cc:1] "sequence \u001b]0;title\u0007\u009b2J"', "sequence \x1b]0;title\a\x9b2J"]
)
def test_text_cannot_control_the_terminal(log, caplog, line):
    log.write(line)

    assert [text for _, text in records(caplog)] == [r"sequence \x1b]0;title\x07\x9b2J"]
    assert log.tail().isprintable()


def test_carriage_returns_of_progress_bars_are_removed(log, caplog):
    log.write("\r 50% |#####     |\r100% |##########|\r\n")

    assert [text for _, text in records(caplog)] == [" 50% |#####     |100% |##########|"]


def test_colors_are_removed(log, caplog):
    log.write("[\x1b[1;31mERROR\x1b[0;39m] \x1b[33mevhtp.c:3130\x1b[39m")

    assert records(caplog) == [(logging.INFO, "[ERROR] evhtp.c:3130")]


def test_text_beyond_latin_1_survives(log, caplog):
    log.write('I1121 09:41:00.123456 77 a.cc:1] "żółć ✓ 🐍 é"')

    assert records(caplog) == [(logging.INFO, "żółć ✓ 🐍 é")]


def test_text_that_only_looks_quoted_survives(log, caplog):
    log.write(r'I1121 09:41:00.123456 77 a.cc:1] "bad \x escape"')
    log.write('I1121 09:41:00.123456 77 a.cc:1] "')

    assert [text for _, text in records(caplog)] == [r"bad \x escape", '"']


def test_tables_of_settings_are_logged_for_debugging(log, caplog):
    for line in SERVER_TABLE:
        log.write(f"{line}\n")

    assert records(caplog) == [(logging.DEBUG, line) for line in SERVER_TABLE[1:]]
    assert log.tail() == ""


def test_the_lack_of_a_gpu_is_not_a_warning(log, caplog):
    log.write('W1121 09:41:00.1 77 metrics.cc:1] "CUDA driver is not there"')

    assert records(caplog) == [(logging.INFO, "CUDA driver is not there")]


def test_an_error_of_a_callable_that_mentions_cuda_stays_an_error(log, caplog):
    text = "model 'm': the inference callable failed: CUDA out of memory"
    log.write(f'E1121 09:41:00.1 77 instance.cc:1] "{text}"')

    assert records(caplog) == [(logging.ERROR, text)]


@pytest.mark.parametrize("text", ["CUDA out of memory", "Failed to insert key: it was nullptr"])
def test_log_lines_of_a_model_keep_their_level_whatever_they_mention(log, caplog, text):
    log.write(f'E1121 09:41:00.1 77 model.py:1] "{text}"')

    assert records(caplog) == [(logging.ERROR, text)]


def test_empty_lines_are_ignored(log, caplog):
    log.write("\n")
    log.write("")

    assert records(caplog) == []
    assert log.tail() == ""


def test_the_tail_has_the_last_lines_unchanged(log):
    for number in range(100):
        log.write(f"line {number}\n")

    lines = log.tail().splitlines()
    assert lines[-1] == "line 99"
    assert 5 < len(lines) < 100


@pytest.mark.parametrize(
    "head",
    ["W1121 09:41:00.123456 77 a.cc:12]", "2026-11-21T09:41:00Z W 77 a.cc:12]", "2026-11-21T09:41:00.1Z W 77 a.cc:12]"],
)
def test_the_source_of_a_line_is_that_of_the_record_in_every_format_of_the_server(log, caplog, head):
    log.write(f'{head} "text of it"\n')
    log.write("printed by a model\n")

    first, second = (record for record in caplog.records if record.name == NAME)
    assert (first.getMessage(), first.levelno) == ("text of it", logging.WARNING)
    assert (first.filename, first.lineno, first.process) == ("a.cc", 12, 77)
    assert (second.filename, second.lineno, second.levelno) == ("", 0, logging.INFO)


def test_a_record_of_a_worker_process_is_unchanged(log, caplog):
    caplog.set_level(logging.INFO, "theirs")
    log.write(
        '{"timestamp":"2026-11-21T09:41:00.123Z","level":"INFO","logger":"theirs","message":"a\\nb","file":"model.py",'
        '"line":3,"process":7,"exception":"Traceback","request_id":"seven"}\n'
    )
    (record,) = (record for record in caplog.records if record.name == "theirs")
    assert (record.getMessage(), record.filename, record.lineno, record.process) == ("a\nb", "model.py", 3, 7)
    assert (record.exc_text, record.request_id, record.msecs) == ("Traceback", "seven", pytest.approx(123))


def test_why_the_folder_of_a_model_cannot_be_read(log):
    error = 'Unknown enumeration value of "FP32" for field "data_type".'
    log.write(f"[libprotobuf ERROR text_format.cc:337] Error parsing text-format inference.ModelConfig: 2:35: {error}")
    head = "E1201 01:00:00.000000 1 model_repository_manager.cc:1]"
    log.write(f"{head} \"Poll failed for model directory 'm': failed to read text proto from m/config.pbtxt\"")
    log.write(f'{head} "Poll failed for model directory \'n\': unexpected \\"x\\""')
    assert (
        log.poll_failure("m", 0) == f"failed to read text proto from m/config.pbtxt (line 2, column 35: {error[:-1]})"
    )
    assert log.poll_failure("n", 0) == 'unexpected "x"'
    assert log.poll_failure("m", 0) == ""
