"""A server that exits unexpectedly is restarted with all its models; callables and processes stay."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import statistics
import sys
import threading
import time
import urllib.request

import cloudpickle
import psutil
import pytest
from processes import Multiply, bind_pid, pid_of_response, process_of
from serving import (
    HOST,
    Background,
    Script,
    bind_floats,
    client_of,
    double,
    held_model,
    is_ready,
    request_json,
    running_triton,
    send_floats,
    server_of,
    servers,
    token_of,
    wait_until,
)
from worker_models import send_request, write_model

from pytriton.decorators import batch
from pytriton.exceptions import PyTritonRuntimeError
from pytriton.model_config import ModelConfig
from pytriton.process import ProcessInstance
from pytriton.triton import RemoteTriton

cloudpickle.register_pickle_by_value(sys.modules[__name__])

READY_S = 0.5
MODELS = 10


@pytest.fixture
def triton():
    with running_triton() as triton:
        yield triton


def kill(triton, number=signal.SIGKILL):
    """Kills the server; returns the seconds until another one is ready."""
    pid = server_of(triton).pid
    start = time.monotonic()
    os.kill(pid, number)
    wait_until(lambda: [server for server in servers() if server.pid != pid and server.is_running()])
    wait_until(lambda: is_ready(triton))
    return time.monotonic() - start


def test_the_server_is_back_within_half_a_second_with_all_models(triton):
    for number in range(MODELS):
        bind_floats(triton, f"Model{number}", batch(lambda x, number=number: [x * number]))
    triton.run()

    times = [kill(triton) for _ in range(5)]

    assert statistics.median(times) <= READY_S
    assert [send_floats(triton, f"Model{number}", [1]) for number in range(MODELS)] == [[n] for n in range(MODELS)]


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
def test_it_is_restarted_however_it_exited(triton, number):
    bind_floats(triton, "double", double)
    triton.run()

    kill(triton, number)

    assert send_floats(triton, "double", [2]) == [4]


def test_ports_and_settings_stay_the_same():
    with running_triton(id="Same", log_verbose=0) as triton:
        triton.run()
        before = triton.config
        kill(triton)

        assert triton.config == before
        assert request_json(triton, "GET", "/v2")[1]["name"] == "Same"


def test_an_exit_is_counted_and_logged_with_signal_and_last_lines(triton, caplog):
    caplog.set_level(logging.WARNING, "pytriton")
    bind_floats(triton, "double", double)
    triton.run()
    kill(triton, signal.SIGSEGV)
    kill(triton)
    wait_until(lambda: len(caplog.records) >= 4)

    ends = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "it was killed by SIGSEGV" in ends[0].getMessage()
    assert "successfully loaded 'double'" in ends[0].getMessage()
    assert "Troubleshooting" in ends[0].getMessage()
    assert "was restarted, and is ready again after" in caplog.text
    with urllib.request.urlopen(f"http://{HOST}:{triton.config.metrics_port}/metrics") as metrics:
        assert "\npytriton_server_restarts_total 2\n" in metrics.read().decode()


def test_it_is_restarted_once_a_thread_can_be_started(triton, monkeypatch, caplog):
    bind_floats(triton, "double", double)
    triton.run()
    start, failed = threading.Thread.start, []

    def start_from_the_third_on(thread):
        if thread.name == "pytriton-server" and len(failed) < 2:
            failed.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_from_the_third_on)
    kill(triton)

    assert len(failed) == 2
    assert "The server cannot be started: can't start new thread" in caplog.text
    assert send_floats(triton, "double", [2]) == [4]


class RaisingHandler(logging.Handler):
    def emit(self, record):
        raise ValueError("I/O operation on closed file")


def test_it_is_restarted_even_if_the_programs_logging_raises(triton):
    bind_floats(triton, "double", double)
    triton.run()
    logger, handler = logging.getLogger("pytriton"), RaisingHandler()
    logger.addHandler(handler)
    try:
        for _ in range(2):
            kill(triton)
            assert send_floats(triton, "double", [2]) == [4]
    finally:
        logger.removeHandler(handler)


def test_a_deleted_workspace_is_named_by_bind_and_by_serve():
    triton = running_triton()
    bind_floats(triton, "double", double)
    serving = Background(triton.serve)
    wait_until(lambda: is_ready(triton))
    sockets = triton._session.registry.folder
    shutil.rmtree(triton._session.workspace.path)

    assert send_floats(triton, "double", [2]) == [4]
    with pytest.raises(PyTritonRuntimeError, match=f"{sockets}' has been deleted"):
        bind_floats(triton, "late", double)
    server_of(triton).kill()
    serving.finish()
    assert f"{sockets}' has been deleted" in str(serving.error)
    assert not servers()


def test_a_deleted_workspace_does_not_delay_the_stop_of_a_repositorys_models(tmp_path):
    write_model(tmp_path, "repository")
    triton = running_triton(model_repository=tmp_path)
    triton.run()
    workspace = triton._session.workspace.path
    shutil.rmtree(workspace)

    start = time.monotonic()
    triton.stop()

    assert time.monotonic() - start < triton._session.exit_timeout_s / 2
    assert not workspace.exists()


def test_a_request_in_flight_fails_and_its_callable_continues(triton):
    entered, gate = held_model(triton, "hold")
    triton.run()
    request = Background(lambda: send_floats(triton, "hold", [1]))
    assert entered.wait(10)

    kill(triton)
    request.finish()
    assert isinstance(request.error, OSError)

    gate.set()
    assert send_floats(triton, "hold", [2]) == [2]


def test_a_process_instance_keeps_its_process(triton):
    bind_pid(triton, "process", ProcessInstance(Multiply))
    triton.run()
    before = process_of("process").pid

    for _ in range(3):
        kill(triton)
        with client_of(triton) as client:
            assert pid_of_response(client, "process") == before


def test_restricted_endpoints_stay_restricted():
    with running_triton() as triton:
        bind_floats(triton, "double", double)
        triton.run()
        kill(triton)

        assert request_json(triton, "POST", "/v2/repository/index", {})[0] == 403
        assert request_json(triton, "POST", "/v2/repository/index", {}, token_of(triton))[0] == 200


def test_the_response_cache_works_again():
    calls = []

    def count(requests):
        calls.append(1)
        return [{"y": request["x"]} for request in requests]

    with running_triton(cache_config=["local,size=1048576"]) as triton:
        bind_floats(triton, "cached", count, config=ModelConfig(response_cache=True))
        triton.run()
        kill(triton)
        calls.clear()

        assert [send_floats(triton, "cached", [5]) for _ in range(3)] == [[5]] * 3
        assert len(calls) == 1


def test_models_of_a_repository_are_reloaded_at_the_first_attempt(tmp_path, caplog):
    write_model(tmp_path, "repository")
    with running_triton(model_repository=tmp_path) as triton:
        triton.run()
        for _ in range(3):
            assert send_request(triton, "repository", 4)[0] == 8
            kill(triton)
        assert send_request(triton, "repository", 5)[0] == 10
    assert caplog.text.count("exited unexpectedly") == 3


def test_it_is_restarted_in_its_folder_if_the_program_has_left_that(tmp_path, monkeypatch):
    write_model(tmp_path / "models", "repository")
    (tmp_path / "backends").mkdir()
    monkeypatch.chdir(tmp_path)
    with running_triton(model_repository="models", backend_directory="backends") as triton:
        triton.run()
        monkeypatch.chdir("/")
        kill(triton)
        assert send_request(triton, "repository", 4)[0] == 8
        assert server_of(triton).cwd() == str(tmp_path)


def test_models_of_a_remote_process_are_reloaded(triton):
    bind_floats(triton, "double", double)
    triton.run()
    remote = RemoteTriton(f"http://{HOST}:{triton.config.http_port}", access_token=triton.get_access_token())
    with remote:
        bind_floats(remote, "triple", batch(lambda x: [x * 3]))
        for _ in range(3):
            kill(triton)
            wait_until(lambda: send_floats(triton, "triple", [2]) == [6])
        assert send_floats(triton, "double", [2]) == [4]


def test_a_model_bound_while_the_server_restarts_is_served(triton):
    bind_floats(triton, "double", double)
    triton.run()
    for number in range(5):
        server_of(triton).kill()
        time.sleep(0.02 * number)  # at any moment of the restart
        bind_floats(triton, f"late{number}", double)

        assert send_floats(triton, f"late{number}", [number]) == [2 * number]


def test_serve_continues_across_a_restart_and_exits_cleanly_on_sigterm(tmp_path):
    code = """
from pytriton.decorators import batch
from pytriton.model_config import Tensor
from pytriton.triton import Triton
import numpy as np

triton = Triton()
triton.bind("double", batch(lambda x: [x * 2]), [Tensor((-1,), np.float32, "x")], [Tensor((-1,), np.float32, "y")])
with triton:
    print(triton.config.http_port, flush=True)
    triton.serve()
print("after", flush=True)
"""
    with Script(tmp_path, code) as script:
        port = int(script.line())
        url = f"http://{HOST}:{port}/v2/health/ready"

        def ready():
            try:
                with urllib.request.urlopen(url, timeout=5) as response:
                    return response.status == 200
            except OSError:
                return False

        wait_until(ready)
        (server,) = servers(script.pid)
        server.kill()
        wait_until(lambda: [each for each in servers(script.pid) if each.pid != server.pid])
        wait_until(ready)
        script.signal(signal.SIGTERM)

        assert script.line() == "after"
        assert script.wait() == 0
        assert not script.workspaces()


def test_without_restarts_the_server_stays_down():
    triton = running_triton(restart=False)
    bind_floats(triton, "double", double)
    serving = Background(lambda: triton.serve())
    wait_until(lambda: is_ready(triton))
    server_of(triton).kill()
    serving.finish()

    assert isinstance(serving.error, PyTritonRuntimeError)
    assert "it was killed by SIGKILL" in str(serving.error)


def test_a_server_that_exits_too_often_stays_down_and_serve_raises_the_reason():
    triton = running_triton(restart_limit=3)
    bind_floats(triton, "double", double)
    serving = Background(lambda: triton.serve())
    wait_until(lambda: is_ready(triton))
    for _ in range(3):
        kill(triton)
    server_of(triton).kill()
    serving.finish()

    assert isinstance(serving.error, PyTritonRuntimeError)
    assert "it was killed by SIGKILL" in str(serving.error)
    assert "successfully loaded 'double'" in str(serving.error)
    assert not servers()


def test_run_reports_a_server_that_stays_down(caplog):
    with running_triton(restart_limit=0) as triton:
        triton.run()
        server_of(triton).kill()
        wait_until(lambda: "stays down, because it ended too often" in caplog.text)

        with pytest.raises(PyTritonRuntimeError, match="SIGKILL"):
            triton.run()


def test_a_stop_during_a_restart_is_prompt(triton):
    bind_floats(triton, "double", double)
    triton.run()
    server_of(triton).kill()
    start = time.monotonic()

    triton.stop()

    assert time.monotonic() - start < 2
    assert not servers()


@pytest.mark.slow
def test_a_hundred_kills_leave_nothing_behind(own_home):
    with running_triton() as triton:
        bind_floats(triton, "double", double)
        triton.run()
        process = psutil.Process()

        def left():
            return process.num_fds(), threading.active_count(), process.memory_info().rss, len(process.children(True))

        for _ in range(5):
            kill(triton)
        assert send_floats(triton, "double", [1]) == [2]
        before = left()
        for _ in range(100):
            kill(triton)
        assert send_floats(triton, "double", [1]) == [2]
        wait_until(lambda: left()[0] <= before[0] and left()[1] <= before[1])
        after = left()
        assert after[3] == before[3]
        assert after[2] - before[2] < 20 << 20
    assert not list(own_home.iterdir())
    assert not servers()


def test_binding_to_a_server_that_stays_down_raises_without_busy_waiting(caplog):
    with running_triton(restart_limit=0) as triton:
        triton.run()
        server_of(triton).kill()
        wait_until(lambda: "stays down, because it ended too often" in caplog.text)
        with pytest.raises(PyTritonRuntimeError, match="SIGKILL"):
            bind_floats(triton, "late", double)
        process = psutil.Process()
        before = sum(process.cpu_times()[:2])
        time.sleep(0.5)
        assert sum(process.cpu_times()[:2]) - before < 0.25
