from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from pytriton.exceptions import PyTritonRuntimeError
from pytriton.server import log_relay
from pytriton.server.files import find_server
from pytriton.server.log import LOGGER
from pytriton.server.process import ServerProcess

READY = "print('ready', flush=True);"


@pytest.fixture(scope="module")
def launcher():
    return str(find_server().launcher)


@pytest.fixture
def start(launcher):
    """Starts Python code in place of the server."""
    processes = []

    def start(code, on_exit=lambda: None, **environment):
        process = ServerProcess(launcher, [sys.executable, "-c", code], {**os.environ, **environment}, on_exit)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.stop(0)


def wait_for_line(process, text):
    deadline = time.monotonic() + 20
    while text not in process.log.tail():
        assert time.monotonic() < deadline, process.log.tail()
        time.sleep(0.005)


def test_its_output_goes_to_the_log(start):
    process = start("import sys; print('out'); print('err', file=sys.stderr)")

    assert process.wait(20)
    assert sorted(process.log.tail().split()) == ["err", "out"]


@pytest.fixture
def blocked_log(monkeypatch):
    """An event that lets the log take its first line, and the list of what it has taken."""
    monkeypatch.setattr(log_relay, "_PATIENCE_S", 0.05)
    released, taken = threading.Event(), []

    class Handler(logging.Handler):
        def emit(self, record):
            released.wait(20)
            taken.append(record.getMessage())

    handler = Handler()
    LOGGER.addHandler(handler)
    level = LOGGER.level
    LOGGER.setLevel(logging.INFO)
    yield released, taken
    released.set()
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)


def test_a_log_that_takes_no_lines_does_not_block_it(start, blocked_log):
    released, taken = blocked_log
    process = start("for number in range(20_000): print(number)")

    assert process.wait(20)
    assert not taken
    released.set()
    deadline = time.monotonic() + 20
    while not (taken and taken[-1].endswith("the program's log took no lines for a while.")):
        assert time.monotonic() < deadline, taken[-1:]
        time.sleep(0.005)
    lines = taken[:-1]
    assert lines == [str(number) for number in range(len(lines))]
    assert taken[-1].startswith(f"{20_000 - len(lines)} lines of the server are missing here")


def test_its_output_is_utf_8_in_any_locale(launcher, run_in_c_locale):
    output = run_in_c_locale(
        "import os, sys; from pytriton.server.process import ServerProcess;"
        "code = 'import sys; sys.stdout.buffer.write(bytes([0xc3, 0xbc, 0xff]))';"
        "process = ServerProcess(sys.argv[1], [sys.executable, '-c', code], os.environ, int);"
        "process.wait(20); print(ascii(process.log.tail()))",
        launcher,
    )

    assert output == ascii("ü\N{REPLACEMENT CHARACTER}") + "\n"


def test_it_has_the_given_environment(start):
    process = start("import os; print(os.environ['OF_ITS_OWN'])", OF_ITS_OWN="here")

    assert process.wait(20)
    assert process.log.tail() == "here"


@pytest.mark.parametrize("is_there", [True, False])
def test_it_runs_in_the_given_folder_or_in_the_root(launcher, tmp_path, is_there):
    folder = tmp_path if is_there else tmp_path / "deleted"
    command = [sys.executable, "-c", "import os; print(os.getcwd())"]
    process = ServerProcess(launcher, command, os.environ, lambda: None, folder=folder)

    assert process.wait(20)
    assert process.log.tail() == str(tmp_path if is_there else "/")


def test_its_exit_is_reported_at_once_with_its_status(start):
    ended = threading.Event()
    process = start("raise SystemExit(5)", ended.set)

    assert ended.wait(20)
    assert not process.is_alive()
    assert process.returncode == 5


def test_while_it_runs_it_has_no_status(start):
    process = start("__import__('time').sleep(60)")

    assert process.is_alive()
    assert process.returncode is None
    assert process.wait(0) is False


def test_stop_sends_sigterm(start):
    process = start(f"import signal, sys, time; signal.signal(15, lambda *_: sys.exit(3)); {READY} time.sleep(60)")
    wait_for_line(process, "ready")

    process.stop(20)

    assert process.returncode == 3


def test_stop_kills_a_process_that_ignores_sigterm(start):
    process = start(f"import signal, time; signal.signal(15, signal.SIG_IGN); {READY} time.sleep(60)")
    wait_for_line(process, "ready")

    process.stop(0.05)

    assert process.returncode == -signal.SIGKILL


def test_stopping_twice_or_after_its_exit_does_nothing(start):
    process = start("")
    assert process.wait(20)

    process.stop(1)
    process.stop(1)

    assert process.returncode == 0


def test_it_is_a_direct_child_process(start):
    process = start("__import__('time').sleep(60)")

    assert psutil.Process(process.pid).ppid() == os.getpid()
    assert os.getsid(process.pid) == process.pid, "Ctrl-C in a terminal does not reach it"


def test_it_outlives_the_thread_that_started_it(start):
    started = []
    thread = threading.Thread(target=lambda: started.append(start("__import__('time').sleep(60)")))
    thread.start()
    thread.join()

    assert not started[0].wait(0.2)


def test_it_exits_with_the_process_that_started_it(launcher, tmp_path):
    code = (
        "import os, signal, sys; from pytriton.server.process import ServerProcess;"
        "process = ServerProcess(sys.argv[1], [sys.executable, '-c', 'import time; time.sleep(60)'], os.environ, int);"
        "print(process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, launcher], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr

    deadline = time.monotonic() + 1
    while psutil.pid_exists(int(done.stdout)) and psutil.Process(int(done.stdout)).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_missing_launcher_is_an_error():
    with pytest.raises(PyTritonRuntimeError, match=r"cannot be started: .*no/launcher"):
        ServerProcess("/no/launcher", ["x"], {}, lambda: None)


def test_a_missing_program_is_reported_in_the_log(launcher):
    process = ServerProcess(launcher, ["/no/server"], {}, lambda: None)

    assert process.wait(20)
    assert process.returncode == 127
    assert "cannot run /no/server: No such file or directory" in process.log.tail()
