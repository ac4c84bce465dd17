"""Scripts of users: however one exits, its server exits too, and nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import time

import psutil
import pytest
from serving import Script, is_running, servers, shared_memory, wait_until

GONE_S = 1.0

SERVE = '''
import os, signal, sys, threading, time
import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton

@batch
def double(x):
    return [x * 2]

def serve_and_say(triton, text):
    """Serves, and says something once it listens to signals."""
    def say():
        while signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            time.sleep(0.002)
        print(text, flush=True)
    threading.Thread(target=say, daemon=True).start()
    triton.serve()

def bind(triton):
    triton.bind(
        model_name="Double",
        infer_func=double,
        inputs=[Tensor(name="x", shape=(-1,), dtype=np.float32)],
        outputs=[Tensor(name="y", shape=(-1,), dtype=np.float32)],
        config=ModelConfig(max_batch_size=8),
    )
'''

BLOCKING = (
    SERVE
    + """
with Triton() as triton:
    bind(triton)
    serve_and_say(triton, "ready")
print("after", flush=True)
"""
)

WAITING = (
    SERVE
    + """
with Triton() as triton:
    bind(triton)
    triton.run()
    print("ready", flush=True)
    time.sleep(60)
"""
)

NOTEBOOK = (
    SERVE
    + """
triton = Triton()
bind(triton)
triton.run()
print("ready", flush=True)
sys.stdin.readline()  # until the test lets it continue
"""
)


@pytest.fixture
def run(tmp_path):
    """Runs a script until it says that it is ready."""
    started = []

    def run(code, *arguments):
        script = Script(tmp_path, code, *arguments)
        started.append(script)
        assert script.line().startswith("ready")
        (script.server,) = servers(script.pid)
        return script

    yield run
    for script in started:
        script.__exit__()


def assert_clean(script, shared_before):
    assert not is_running(script.server)
    assert script.workspaces() == []
    assert shared_memory() <= shared_before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_serve_cleanly(run, number):
    before = shared_memory()
    script = run(BLOCKING)

    script.signal(number)

    assert script.line() == "after"
    assert script.wait() == 0, script.stderr
    assert "Traceback" not in script.stderr
    assert_clean(script, before)


def test_ctrl_c_in_a_terminal_goes_to_the_script_alone(run):
    script = run(BLOCKING)

    assert os.getsid(script.server.pid) != os.getsid(script.pid)


def test_ctrl_c_outside_of_serve_is_a_keyboard_interrupt_and_stops_the_server(run):
    before = shared_memory()
    script = run(WAITING)

    script.signal(signal.SIGINT)

    assert script.wait() != 0
    assert "KeyboardInterrupt" in script.stderr
    assert_clean(script, before)


def test_sigterm_outside_of_serve_stops_the_server_too(run):
    before = shared_memory()
    script = run(WAITING)

    script.signal(signal.SIGTERM)

    assert script.wait() == -signal.SIGTERM
    wait_until(lambda: not is_running(script.server), GONE_S)
    assert shared_memory() <= before


def test_an_exception_in_the_context_stops_the_server(run):
    before = shared_memory()
    script = run(WAITING.replace("time.sleep(60)", "input(); raise RuntimeError('on purpose')"))

    script.resume()

    assert script.wait() == 1
    assert "on purpose" in script.stderr
    assert_clean(script, before)


@pytest.mark.parametrize(("ending", "status"), [("", 0), ("sys.exit(3)", 3), ("raise RuntimeError('on purpose')", 1)])
def test_a_script_that_exits_without_stop_stops_the_server(run, ending, status):
    before = shared_memory()
    script = run(NOTEBOOK + ending)

    script.resume()

    assert script.wait() == status, script.stderr
    assert_clean(script, before)


def test_sigkill_of_the_script_stops_the_server_within_a_second(run):
    before = shared_memory()
    script = run(BLOCKING)

    script.signal(signal.SIGKILL)
    start = time.monotonic()
    script.wait()
    wait_until(lambda: not is_running(script.server), GONE_S)

    assert time.monotonic() - start < GONE_S
    assert shared_memory() <= before


def test_the_next_run_removes_the_workspace_of_a_killed_one(run, monkeypatch):
    script = run(BLOCKING)
    script.signal(signal.SIGKILL)
    script.wait()
    wait_until(lambda: not is_running(script.server), GONE_S)
    (left,) = script.workspaces()

    from pytriton.utils.workspace import Workspace

    monkeypatch.setenv("PYTRITON_HOME", str(script.home))
    Workspace().clean()

    assert left not in script.workspaces()


def test_the_only_processes_are_the_users_and_tritonserver(run):
    script = run(BLOCKING)

    processes = psutil.Process(script.pid).children(recursive=True)

    assert [process.name() for process in processes] == ["tritonserver"]


def test_nothing_of_the_server_is_in_dev_shm_while_it_runs(run):
    before = shared_memory()
    run(BLOCKING)

    assert shared_memory() <= before


def test_the_exit_of_a_fork_does_not_affect_the_server(run):
    script = run(
        WAITING.replace(
            "    time.sleep(60)",
            """
    import multiprocessing
    child = os.fork()
    if child == 0:
        sys.exit(0)  # runs the exit handlers that it has inherited
    os.waitpid(child, 0)
    forked = multiprocessing.get_context("fork").Process(target=int)
    forked.start()
    forked.join()
    serve_and_say(triton, "alive" if triton.is_alive() and triton.is_connected() else "dead")
""",
        )
    )

    assert script.line() == "alive", script.stderr
    assert is_running(script.server)
    assert script.workspaces()
    script.signal(signal.SIGINT)
    assert script.wait() == 0


def test_a_surviving_fork_does_not_keep_the_server_running(run):
    script = run(
        WAITING.replace(
            "    time.sleep(60)",
            """
    child = os.fork()
    if child == 0:
        time.sleep(20)
        os._exit(0)
    serve_and_say(triton, child)
""",
        )
    )
    child = psutil.Process(int(script.line()))

    script.signal(signal.SIGINT)

    assert script.wait() == 0
    assert not is_running(script.server)
    assert script.workspaces() == []
    child.kill()


def test_a_script_may_start_its_server_in_a_thread_that_ends(run):
    script = run(
        SERVE
        + """
triton = []
thread = threading.Thread(target=lambda: triton.append(Triton().__enter__()))
thread.start()
thread.join()
(triton,) = triton
bind(triton)
triton.run()
print("ready", flush=True)
serve_and_say(triton, triton.is_connected())
"""
    )

    assert script.line() == "True"
    assert is_running(script.server)
    script.signal(signal.SIGTERM)
    assert script.wait() == 0


def test_serve_reports_a_killed_server(run, monkeypatch):
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_RESTART", "false")
    script = run(BLOCKING)

    script.server.kill()

    assert script.wait() == 1
    assert "PyTritonRuntimeError: The server exited unexpectedly: it was killed by SIGKILL." in script.stderr
    assert script.workspaces() == []


def test_a_second_ctrl_c_during_the_stop_does_no_harm(run):
    script = run(BLOCKING.replace("return [x * 2]", "import time; time.sleep(0.1); return [x * 2]"))

    script.signal(signal.SIGINT)
    script.signal(signal.SIGINT)
    script.wait()

    wait_until(lambda: not is_running(script.server), GONE_S)


def test_ignored_signals_stay_ignored(run):
    script = run(
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


def test_serve_restores_the_users_signal_handlers(run):
    script = run(
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


def test_forked_processes_are_terminated_by_signals_as_usual(run):
    script = run(
        SERVE
        + """
with Triton() as triton:
    bind(triton)
    triton.run()
    print("ready", flush=True)
    child = os.fork()
    if child == 0:
        print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
        time.sleep(60)
    sys.stdin.readline()
    os.kill(child, signal.SIGTERM)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(status, triton.is_alive(), os.path.exists(triton._session.workspace.path))
"""
    )
    assert script.line() == "True"
    script.resume()
    assert script.line() == "-15 True True"
    assert script.wait() == 0


def test_signal_handlers_of_the_user_are_kept(run):
    script = run(
        SERVE
        + """
handler = lambda *_: sys.exit(7)
signal.signal(signal.SIGTERM, handler)
with Triton() as triton:
    triton.run()
    print("ready", signal.getsignal(signal.SIGTERM) is handler, flush=True)
    time.sleep(60)
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
def test_a_signal_handler_of_the_user_ends_serve_in_its_own_way(run, action, status):
    script = run(SERVE + OWN_HANDLER.format(action=action))
    script.wait_until_it_serves()

    script.signal(signal.SIGTERM)

    assert script.line() == "mine"
    assert script.wait() == status, script.stderr
    assert script.process.stdout.read() == ("after\n" if status == 0 else "")
    assert script.workspaces() == []


def test_a_signal_handler_of_the_user_may_keep_serving(run):
    script = run(
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


def test_serve_prints_the_address_of_each_model_once(run):
    script = run(BLOCKING)
    wait_until(lambda: "Metrics: " in script.stderr)
    lines = script.stderr[script.stderr.index("Model ") :].splitlines()

    assert re.fullmatch(r"Model Double v1: http://localhost:(\d+)/v2/models/Double/infer", lines[0])
    assert re.fullmatch(r"gRPC: grpc://localhost:\d+", lines[1])
    assert re.fullmatch(r"Metrics: http://localhost:\d+/metrics", lines[2])
    script.server.kill()
    wait_until(lambda: "is ready again" in script.stderr)
    assert script.stderr.count("Model Double") == 1


def test_serve_is_silent_on_request(run):
    script = run(BLOCKING.replace("triton.serve()", "triton.serve(announce=False)"))
    script.signal(signal.SIGINT)
    assert script.wait() == 0
    assert "Model Double" not in script.stderr


def test_serve_logs_the_addresses_if_logging_is_configured(run):
    script = run("import logging\nlogging.basicConfig(level=logging.INFO, format='%(name)s: %(message)s')\n" + BLOCKING)
    wait_until(lambda: "\npytriton.triton: Model Double v1: http://" in f"\n{script.stderr}")
    script.signal(signal.SIGINT)
    assert script.wait() == 0
