"""Signals to scripts of users, while they serve, start or wait."""

from __future__ import annotations

import os
import signal

import pytest
from scripts import BLOCKING, GONE_S, SERVE, WAITING, assert_clean
from serving import Script, is_running, shared_memory, wait_until


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_serve_cleanly(run_script, number):
    before = shared_memory()
    script = run_script(BLOCKING)

    script.signal(number)

    assert script.line() == "after"
    assert script.wait() == 0, script.stderr
    assert "Traceback" not in script.stderr
    assert_clean(script, before)


def test_ctrl_c_in_a_terminal_goes_to_the_script_alone(run_script):
    script = run_script(BLOCKING)

    assert os.getsid(script.server.pid) != os.getsid(script.pid)


def test_ctrl_c_outside_of_serve_is_a_keyboard_interrupt_and_stops_the_server(run_script):
    before = shared_memory()
    script = run_script(WAITING)

    script.signal(signal.SIGINT)

    assert script.wait() != 0
    assert "KeyboardInterrupt" in script.stderr
    assert_clean(script, before)


def test_sigterm_outside_of_serve_stops_the_server_too(run_script):
    before = shared_memory()
    script = run_script(WAITING)

    script.signal(signal.SIGTERM)

    assert script.wait() == -signal.SIGTERM
    wait_until(lambda: not is_running(script.server), GONE_S)
    assert shared_memory() <= before


def test_a_second_ctrl_c_during_the_stop_does_no_harm(run_script):
    script = run_script(BLOCKING.replace("return [x * 2]", "import time; time.sleep(0.1); return [x * 2]"))

    script.signal(signal.SIGINT)
    script.signal(signal.SIGINT)
    script.wait()

    wait_until(lambda: not is_running(script.server), GONE_S)


def test_ignored_signals_stay_ignored(run_script):
    script = run_script(
        SERVE
        + """
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a background job
def say():
    while signal.getsignal(signal.SIGTERM).__name__ != "wake":
        time.sleep(0.002)
    print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN, flush=True)
with Triton() as triton:
    triton.run()
    print("ready", flush=True)
    threading.Thread(target=say).start()
    triton.serve()
"""
    )

    assert script.line() == "True"
    script.signal(signal.SIGTERM)
    assert script.wait() == 0


def test_serve_restores_the_users_signal_handlers(run_script):
    script = run_script(
        BLOCKING
        + """
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
"""
    )
    script.signal(signal.SIGINT)

    assert [script.line() for _ in range(3)] == ["after", "True", "True"]


STARTING = """
import os, threading, time
from pytriton.utils.workspace import Workspace

def kill():
    time.sleep(float(sys.argv[1]))
    os.kill(os.getpid(), int(sys.argv[2]))

create = Workspace.create
def create_and_be_killed(workspace):
    create(workspace)
    Workspace.create = create
    threading.Thread(target=kill).start()

Workspace.create = create_and_be_killed
"""


def end_while_starting(folder, delay_ms, number):
    """Sends a signal to a script some time after it has made its workspace; returns the exit status and its stderr."""
    with Script(folder, "import sys" + STARTING + BLOCKING, delay_ms / 1000, int(number)) as script:
        status = script.wait()
        assert script.workspaces() == [], delay_ms
        assert "CleanupWarning" not in script.stderr
        return status, script.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("step_ms", [50, pytest.param(5, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_a_signal_at_any_time_of_the_start_leaves_nothing_behind(tmp_path, number, step_ms):
    before = shared_memory()
    for delay_ms in range(0, 200, step_ms):
        status, stderr = end_while_starting(tmp_path, delay_ms, number)
        assert status in (-number, 0), stderr  # 0: it was serving already
        assert "Traceback" not in stderr
    assert shared_memory() <= before


@pytest.mark.parametrize("step_ms", [25, pytest.param(5, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_ctrl_c_at_any_time_of_the_start_leaves_nothing_behind(tmp_path, step_ms):
    before = shared_memory()
    for delay_ms in range(0, 200, step_ms):
        status, stderr = end_while_starting(tmp_path, delay_ms, signal.SIGINT)
        assert status == 0 or "KeyboardInterrupt" in stderr, stderr
    assert shared_memory() <= before


def test_forked_processes_are_terminated_by_signals_as_usual(run_script):
    script = run_script(
        WAITING.replace(
            "    sleep_for_a_minute()",
            """
    child = os.fork()
    if child == 0:
        print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
        time.sleep(60)
    sys.stdin.readline()
    os.kill(child, signal.SIGTERM)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(status, triton.is_alive(), os.path.exists(triton._session.workspace.path))
""",
        )
    )
    assert script.line() == "True"
    script.resume()
    assert script.line() == "-15 True True"
    assert script.wait() == 0


def test_signal_handlers_of_the_user_are_kept(run_script):
    script = run_script(
        SERVE
        + """
handler = lambda *_: sys.exit(7)
signal.signal(signal.SIGTERM, handler)
with Triton() as triton:
    triton.run()
    print("ready", signal.getsignal(signal.SIGTERM) is handler, flush=True)
    sleep_for_a_minute()
"""
    )
    script.signal(signal.SIGTERM)
    assert script.wait() == 7
    assert script.workspaces() == []


OWN_HANDLER = """
def on_sigterm(*_):
    print("mine", flush=True)
    {action}
signal.signal(signal.SIGTERM, on_sigterm)
with Triton() as triton:
    bind(triton)
    triton.run()
    print("ready", flush=True)
    triton.serve()
print("after", flush=True)
"""


@pytest.mark.parametrize(
    ("action", "status"), [("triton.stop()", 0), ("raise KeyboardInterrupt", 0), ("sys.exit(7)", 7)]
)
def test_a_signal_handler_of_the_user_ends_serve_in_its_own_way(run_script, action, status):
    script = run_script(SERVE + OWN_HANDLER.format(action=action))
    script.wait_until_it_serves()

    script.signal(signal.SIGTERM)

    assert script.line() == "mine"
    assert script.wait() == status, script.stderr
    assert script.process.stdout.read() == ("after\n" if status == 0 else "")
    assert script.workspaces() == []


def test_a_signal_handler_of_the_user_may_keep_serving(run_script):
    script = run_script(
        SERVE
        + OWN_HANDLER.format(action="handled.set()").replace(
            "with Triton",
            """
handled = threading.Event()
def stop_later():
    handled.wait()
    print("still", triton.is_alive(), flush=True)
    sys.stdin.readline()
    triton.stop()
threading.Thread(target=stop_later).start()
with Triton""",
        )
    )

    script.wait_until_it_serves()
    script.signal(signal.SIGTERM)

    assert [script.line(), script.line()] == ["mine", "still True"]
    script.resume()
    assert script.line() == "after"
    assert script.wait() == 0
