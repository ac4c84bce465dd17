"""Worker processes of repository models: started, watched and stopped by the server."""

from __future__ import annotations

import contextlib
import functools
import http.client
import logging
import os
import pathlib
import re
import resource
import signal
import time

import psutil
import pytest
from serving import (
    Background,
    Script,
    at_once,
    is_running,
    metrics_of,
    running_triton,
    server_of,
    servers,
    wait_until,
)
from worker_models import (
    MODEL,
    SERVE,
    command,
    kill,
    none_runs,
    pid_of,
    send_request,
    state_of,
    workers,
    workers_of,
    write_model,
)

from pytriton.exceptions import PyTritonInvalidOperationError
from pytriton.server import control

TWO = "instance_group [{count: 2, kind: KIND_CPU}]"


@pytest.fixture
def load(triton, repository, name):
    """Writes a model and has it loaded; returns the folder of its version."""

    def load(**model):
        folder = write_model(repository, name, **model)
        status, response = command(triton, name, "load")
        assert status == 200, response
        return folder

    return load


def test_each_instance_has_a_process_of_its_own(triton, name, load):
    load(config=TWO)
    two = {pid_of(triton, name) for _ in range(50)} | {
        int(row[-1]) for row in at_once(8, lambda _: send_request(triton, name, -2, 0.2))
    }
    assert len(two) == 2
    assert two <= {worker.pid for worker in workers_of(triton)}


def test_a_worker_process_has_neither_the_servers_libraries_nor_its_settings(triton, name, load):
    load()
    worker = psutil.Process(pid_of(triton, name))
    assert "libmimalloc" not in pathlib.Path(f"/proc/{worker.pid}/maps").read_text()
    assert "LD_PRELOAD" not in worker.environ()
    assert "THP_enabled:\t1\n" in pathlib.Path(f"/proc/{worker.pid}/status").read_text()


def test_a_worker_process_knows_its_instance(triton, name, load):
    start = """
    import pathlib
    assert args["model_name"] == pathlib.Path(args["model_repository"]).name, args
    assert args["model_version"] == "1", args
    assert args["model_instance_kind"] == "CPU", args
    assert args["model_instance_device_id"] == "0", args
    """
    load(start=start, config="instance_group [{kind: KIND_CPU}]")
    assert send_request(triton, name, 1, 2)[:2] == [2, 4]


def test_a_worker_process_has_none_of_the_servers_files_and_libraries(triton, name, load):
    load()
    worker = psutil.Process(pid_of(triton, name))
    assert files_of(worker) & files_of(server_of(triton)) == set()
    assert worker.environ().get("LD_LIBRARY_PATH") == os.environ.get("LD_LIBRARY_PATH")


def test_threads_of_a_worker_process_have_stacks_as_usual(triton, name, load):
    load()
    usual, _ = resource.getrlimit(resource.RLIMIT_STACK)
    assert psutil.Process(pid_of(triton, name)).rlimit(psutil.RLIMIT_STACK)[0] == usual
    assert server_of(triton).rlimit(psutil.RLIMIT_STACK)[0] > usual


def files_of(process):
    """Sockets, pipes and files that a process holds, beside its input and output."""
    links = {}
    for fd in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            links[fd.name] = str(fd.readlink())
    shared = [links[number] for number in ("0", "1", "2")]
    return {link for link in links.values() if link not in shared and not link.startswith(("anon_inode", "/memfd"))}


def test_the_request_of_a_killed_process_fails_and_the_next_one_succeeds(triton, name, load):
    load()
    first = pid_of(triton, name)
    assert "the worker has gone" in send_request(triton, name, -1)
    assert pid_of(triton, name) != first


def test_a_process_whose_model_closes_all_descriptors_is_replaced(triton, name, load):
    load()
    first = pid_of(triton, name)
    start = time.monotonic()
    response = send_request(triton, name, -3)
    assert response == [-6, first] or "the worker has gone" in response
    assert pid_of(triton, name) != first
    assert time.monotonic() - start < 10


def test_killing_a_process_between_requests_fails_no_request(triton, name, load):
    load()
    first = pid_of(triton, name)
    kill(first)
    assert pid_of(triton, name) != first


def test_a_restart_is_counted_and_logged_with_the_exit_status(triton, name, load, caplog):
    load()
    assert metrics_of(triton, name)["pytriton_worker_restarts_total"] == 0
    with caplog.at_level(logging.WARNING):
        pid = pid_of(triton, name)
        kill(pid)
        pid_of(triton, name)
        text = f"model '{name}': its worker process ({pid}) was killed by SIGKILL; restarting it"
        wait_until(lambda: text in caplog.text)
    assert metrics_of(triton, name)["pytriton_worker_restarts_total"] == 1


def test_a_process_that_exits_repeatedly_is_restarted_with_back_off(triton, name, load, caplog):
    folder = load()
    (folder / "start.py").write_text("import os; os._exit(3)")
    with caplog.at_level(logging.WARNING):
        kill(pid_of(triton, name))
        wait_until(lambda: f"model '{name}': its worker process ended with exit status 3; " in caplog.text)
        wait_until(lambda: len(delays(caplog.text, name)) >= 4)
    assert delays(caplog.text, name)[:4] == [0, 0.1, 0.2, 0.4]
    (folder / "start.py").unlink()
    wait_until(lambda: isinstance(send_request(triton, name, 1), list))


def delays(log, name):
    """Seconds that the log says a model's process waits for its starts."""
    lines = re.findall(rf"model '{name}'.*; restarting it(?: in (\S+) s)?$", log, re.MULTILINE)
    return [float(delay or 0) for delay in lines]


def test_requests_fail_with_the_reason_while_the_model_cannot_be_reloaded(triton, name, load):
    folder = load()
    (folder / "start.py").write_text("raise ValueError('no weights')")
    kill(pid_of(triton, name))
    for _ in range(3):
        assert "has no worker: ValueError: no weights" in send_request(triton, name, 1)
    (folder / "start.py").unlink()
    wait_until(lambda: isinstance(send_request(triton, name, 1), list))


def test_requests_wait_for_a_restarting_process(triton, name, load):
    folder = load()
    (folder / "start.py").write_text("import time; time.sleep(1)")
    kill(pid_of(triton, name))
    assert at_once(4, lambda number: send_request(triton, name, number)[0]) == [0, 2, 4, 6]


def test_other_instances_serve_the_requests_of_a_restarting_process(triton, name, load):
    folder = load(config=TWO)
    (folder / "start.py").write_text("import time; time.sleep(3)")
    kill(pid_of(triton, name))
    start = time.monotonic()
    requests = [Background(lambda number=number: send_request(triton, name, number)[0]) for number in range(10)]
    assert [request.finish().result for request in requests] == [2 * number for number in range(10)]
    late = [request for request in requests if request.ended - start > 2]
    assert len(late) <= 1, "more than one waited for the process that is being restarted"


def test_other_models_are_unaffected_by_the_exit_of_a_process(triton, repository, name, load):
    load()
    other = f"{name}_other"
    write_model(repository, other)
    assert command(triton, other, "load")[0] == 200
    pid = pid_of(triton, other)
    slow = Background(lambda: send_request(triton, other, -2, 0.5))
    kill(pid_of(triton, name))
    assert pid_of(triton, name)
    assert slow.finish().result[-1] == pid


def test_child_processes_exit_with_the_worker_process(triton, name, load):
    start = """
    import pathlib, subprocess
    child = subprocess.Popen(["sleep", "1000"])
    (pathlib.Path(args["model_repository"]) / "child").write_text(str(child.pid))
    """
    folder = load(start=start)
    child = psutil.Process(int((folder.parent / "child").read_text()))
    kill(pid_of(triton, name))
    wait_until(lambda: not is_running(child))


def test_unloading_stops_the_process_cleanly_and_loading_starts_another(triton, name, load, caplog):
    load()
    worker = psutil.Process(pid_of(triton, name))
    with caplog.at_level(logging.INFO):
        assert command(triton, name, "unload")[0] == 200
        wait_until(lambda: state_of(triton, name) == "UNAVAILABLE")
        wait_until(lambda: f"finalized {name}" in caplog.text)
    assert not is_running(worker)
    assert not [line for line in caplog.messages if name in line and "restarting" in line]
    assert command(triton, name, "load")[0] == 200
    assert pid_of(triton, name) != worker.pid


def test_an_unloaded_model_leaves_no_socket_files(triton, name, load):
    folder = pathlib.Path(server_of(triton).environ()["PYTRITON_BACKEND_FOLDER"])
    load()
    files = len(list(folder.rglob("*")))
    for verb in ("unload", "load"):
        assert command(triton, name, verb)[0] == 200
    wait_until(lambda: len(list(folder.rglob("*"))) == files)


def test_a_model_is_unloaded_while_its_process_is_restarting(triton, name, load, tmp_path):
    folder = load()
    (folder / "start.py").write_text(f"import pathlib, time; pathlib.Path('{tmp_path}/up').touch(); time.sleep(1000)")
    kill(pid_of(triton, name))
    wait_until((tmp_path / "up").exists)
    assert command(triton, name, "unload")[0] == 200
    wait_until(lambda: state_of(triton, name) == "UNAVAILABLE", timeout_s=5)


def test_reloading_a_model_replaces_its_processes_without_an_error(triton, name, load):
    folder = load()
    first = psutil.Process(pid_of(triton, name))
    sending = True
    responses = []

    def send_on():
        while sending:
            responses.append(send_request(triton, name, 1))

    background = Background(send_on)
    config = folder.parent / "config.pbtxt"
    config.write_text(config.read_text() + "dynamic_batching {}")
    assert command(triton, name, "load")[0] == 200
    wait_until(lambda: pid_of(triton, name) != first.pid)
    sending = False
    background.finish()
    assert [response for response in responses if isinstance(response, str)] == []
    wait_until(lambda: not is_running(first))


def test_settings_without_effect_are_warned_about_once(tmp_path, caplog):
    write_model(tmp_path, "first")
    write_model(tmp_path, "second")
    settings = ["python,shm-default-byte-size=1048576", "python,shm-region-prefix-name=prefix"]
    with (
        caplog.at_level(logging.INFO),
        running_triton(model_repository=tmp_path, backend_config=settings) as triton,
    ):
        triton.run()
    assert caplog.text.count("shm-default-byte-size, shm-region-prefix-name has no effect") == 1


def test_an_invalid_timeout_is_refused(tmp_path):
    write_model(tmp_path, "first")
    with (
        running_triton(model_repository=tmp_path, backend_config=["python,stub-timeout-seconds=soon"]) as triton,
        pytest.raises(PyTritonInvalidOperationError, match="timeout-seconds=soon is not a number of seconds above 0"),
    ):
        triton.run()


@pytest.fixture
def ignores_sigchld():
    """Lets the program ignore SIGCHLD until the test calls this."""
    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    restore = functools.partial(signal.signal, signal.SIGCHLD, previous)
    yield restore
    restore()


def test_the_server_learns_how_a_process_ends_if_the_program_ignores_sigchld(tmp_path, caplog, ignores_sigchld):
    write_model(tmp_path, "first")
    with running_triton(model_repository=tmp_path) as triton:
        triton.run()
        ignores_sigchld()
        pid = pid_of(triton, "first")
        kill(pid)
        wait_until(lambda: f"({pid}) was killed by SIGKILL" in caplog.text)
        pid_of(triton, "first")
        assert command(triton, "first", "unload")[0] == 200
        wait_until(lambda: state_of(triton, "first") == "UNAVAILABLE", timeout_s=10)


def test_stopping_waits_for_models_to_finalize(tmp_path, caplog):
    code = MODEL.replace('print("fin', 'time.sleep(2); print("fin')
    write_model(tmp_path, "last", code=code)
    with caplog.at_level(logging.INFO):
        with running_triton(model_repository=tmp_path) as triton:
            triton.run()
        assert "finalized last" in caplog.text


def test_a_model_whose_finalize_hangs_is_killed_and_named(tmp_path, caplog):
    write_model(tmp_path, "last", code=MODEL.replace('print("fin', 'time.sleep(600); print("fin'))
    with running_triton(model_repository=tmp_path, exit_timeout_secs=1) as triton:
        triton.run()
        process = psutil.Process(pid_of(triton, "last"))
    assert "Models 'last' have not finished after 1 s, and are killed with the server." in caplog.text
    wait_until(lambda: not is_running(process))


def test_stopping_waits_for_models_while_the_server_is_too_busy_to_report_them(tmp_path, caplog, monkeypatch):
    code = MODEL.replace('print("fin', 'time.sleep(2); print("fin')
    write_model(tmp_path, "last", code=code)
    with caplog.at_level(logging.INFO):
        with running_triton(model_repository=tmp_path) as triton:
            triton.run()
            monkeypatch.setattr(control, "_TIMEOUT_S", 1e-9)
        assert "finalized last" in caplog.text


def test_lines_that_processes_print_at_the_same_time_stay_whole(triton, name, load, caplog):
    code = MODEL.replace("        pid =", '        [print(*"abcdefgh", x[0, 0]) for _ in range(500)]\n        pid =')
    load(config="instance_group [{count: 4, kind: KIND_CPU}]", code=code)
    line = "a b c d e f g h 1.0"
    with caplog.at_level(logging.INFO):
        at_once(4, lambda _: send_request(triton, name, 1))
        wait_until(lambda: len([each for each in caplog.messages if "h" in each]) >= 2000)
    assert caplog.messages.count(line) == 2000


GRANDCHILD = """
import pathlib, subprocess
child = subprocess.Popen(["sleep", "30"], start_new_session=True)
(pathlib.Path(args["model_repository"]) / "child").write_text(str(child.pid))
"""


@pytest.fixture
def script(tmp_path):
    repository = tmp_path / "models"
    for number in range(2):
        write_model(repository, f"model{number}", config=TWO)
    with Script(tmp_path, SERVE, repository) as script:
        script.line()
        yield script


@pytest.mark.parametrize("victim", ["script", "server"])
def test_nothing_is_left_when_a_process_is_killed(script, victim):
    (server,) = servers(script.pid)
    processes = [server, *server.children(recursive=True)]
    assert len(workers(server)) == 4
    kill({"script": script.pid, "server": server.pid}[victim])
    wait_until(lambda: none_runs(processes))


def test_the_servers_exit_is_noticed_while_a_process_holds_its_output(tmp_path):
    folder = write_model(tmp_path, "model", start=GRANDCHILD)
    with running_triton(model_repository=tmp_path, restart=False) as triton:
        triton.run()
        child = psutil.Process(int((folder.parent / "child").read_text()))
        server_of(triton).kill()
        wait_until(lambda: not triton.is_alive())
        assert child.is_running()
        child.kill()


def test_a_process_that_holds_the_interpreter_lock_exits_with_the_server(tmp_path):
    code = f"""
import ctypes
import pathlib


class TritonPythonModel:
    def execute(self, requests):
        pathlib.Path("{tmp_path}/blocks").touch()
        ctypes.PyDLL(None).sleep(1000)
"""
    write_model(tmp_path / "models", "model", code=code)
    with Script(tmp_path, SERVE, tmp_path / "models") as script:
        connection = http.client.HTTPConnection("127.0.0.1", int(script.line()))
        (server,) = servers(script.pid)
        (worker,) = workers(server)
        body = '{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[1]}]}'
        connection.request("POST", "/v2/models/model/infer", body)
        wait_until((tmp_path / "blocks").exists)
        kill(server.pid)
        wait_until(lambda: not is_running(worker))
        connection.close()
