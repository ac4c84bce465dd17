"""Scripts of users: however one exits, its server exits too, and nothing is left behind."""

from __future__ import annotations

import re
import signal
import time

import psutil
import pytest
from scripts import BLOCKING, GONE_S, NOTEBOOK, SERVE, WAITING, assert_clean
from serving import is_running, shared_memory, wait_until


def test_an_exception_in_the_context_stops_the_server(run_script):
    before = shared_memory()
    script = run_script(WAITING.replace("    sleep_for_a_minute()", "    input(); raise RuntimeError('on purpose')"))

    script.resume()

    assert script.wait() == 1
    assert "on purpose" in script.stderr
    assert_clean(script, before)


@pytest.mark.parametrize(("ending", "status"), [("", 0), ("sys.exit(3)", 3), ("raise RuntimeError('on purpose')", 1)])
def test_a_script_that_exits_without_stop_stops_the_server(run_script, ending, status):
    before = shared_memory()
    script = run_script(NOTEBOOK + ending)

    script.resume()

    assert script.wait() == status, script.stderr
    assert_clean(script, before)


def test_sigkill_of_the_script_stops_the_server_within_a_second(run_script):
    before = shared_memory()
    script = run_script(BLOCKING)

    script.signal(signal.SIGKILL)
    start = time.monotonic()
    script.wait()
    wait_until(lambda: not is_running(script.server), GONE_S)

    assert time.monotonic() - start < GONE_S
    assert shared_memory() <= before


def test_the_next_run_removes_the_workspace_of_a_killed_one(run_script, monkeypatch):
    script = run_script(BLOCKING)
    script.signal(signal.SIGKILL)
    script.wait()
    wait_until(lambda: not is_running(script.server), GONE_S)
    (left,) = script.workspaces()

    from pytriton.utils.workspace import Workspace

    monkeypatch.setenv("PYTRITON_HOME", str(script.home))
    Workspace().clean()

    assert left not in script.workspaces()


def test_the_only_processes_are_the_users_and_tritonserver(run_script):
    script = run_script(BLOCKING)

    processes = psutil.Process(script.pid).children(recursive=True)

    assert [process.name() for process in processes] == ["tritonserver"]


def test_nothing_of_the_server_is_in_dev_shm_while_it_runs(run_script):
    before = shared_memory()
    run_script(BLOCKING)

    assert shared_memory() <= before


def test_the_exit_of_a_fork_does_not_affect_the_server(run_script):
    script = run_script(
        WAITING.replace(
            "    sleep_for_a_minute()",
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


def test_a_surviving_fork_does_not_keep_the_server_running(run_script):
    script = run_script(
        WAITING.replace(
            "    sleep_for_a_minute()",
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


def test_a_script_may_start_its_server_in_a_thread_that_ends(run_script):
    script = run_script(
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


def test_serve_reports_a_killed_server(run_script, monkeypatch):
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_RESTART", "false")
    script = run_script(BLOCKING)

    script.server.kill()

    assert script.wait() == 1
    assert "PyTritonRuntimeError: The server exited unexpectedly: it was killed by SIGKILL." in script.stderr
    assert script.workspaces() == []


def test_serve_prints_the_address_of_each_model_once(run_script):
    script = run_script(BLOCKING)
    wait_until(lambda: "Metrics: " in script.stderr)
    lines = script.stderr[script.stderr.index("Model ") :].splitlines()

    assert re.fullmatch(r"Model Double v1: http://localhost:(\d+)/v2/models/Double/infer", lines[0])
    assert re.fullmatch(r"gRPC: grpc://localhost:\d+", lines[1])
    assert re.fullmatch(r"Metrics: http://localhost:\d+/metrics", lines[2])
    script.server.kill()
    wait_until(lambda: "is ready again" in script.stderr)
    assert script.stderr.count("Model Double") == 1


def test_serve_is_silent_on_request(run_script):
    script = run_script(BLOCKING.replace("triton.serve()", "triton.serve(announce=False)"))
    script.signal(signal.SIGINT)
    assert script.wait() == 0
    assert "Model Double" not in script.stderr


def test_serve_logs_the_addresses_if_logging_is_configured(run_script):
    script = run_script(
        "import logging\nlogging.basicConfig(level=logging.INFO, format='%(name)s: %(message)s')\n" + BLOCKING
    )
    wait_until(lambda: "\npytriton.triton: Model Double v1: http://" in f"\n{script.stderr}")
    script.signal(signal.SIGINT)
    assert script.wait() == 0
