"""Worker processes that exit: which requests fail, which wait, and what is cleaned up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import threading
import time

import cloudpickle
import psutil
import pytest
from processes import ONE_BY_ONE, Multiply, bind_held, bind_pid, hold, pid_of_response, process_of, processes_of
from random_kills import check_failures, kill_at_random
from serving import (
    Background,
    InferenceServerException,
    Load,
    Script,
    bind_floats,
    client_of,
    double,
    is_ready,
    is_running,
    metrics_of,
    request_json,
    running_triton,
    send_floats,
    server_of,
    wait_until,
)

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig
from pytriton.process import ProcessInstance

cloudpickle.register_pickle_by_value(sys.modules[__name__])

NOTICED_S = 1.0


def restarted(name, old, instance=0):
    """Waits for the process that has taken the place of another."""
    return wait_until(lambda: process_of(name, instance) not in (None, old) and process_of(name, instance), 30)


def served_by(client, name):
    """The process that responds, unless it exits meanwhile."""
    with contextlib.suppress(InferenceServerException):
        return pid_of_response(client, name)


def make_again_behind_gate(folder):
    """Makes a callable; in each process but the first, it waits until the folder has a file ``gate``."""
    if (folder / "made").exists():
        wait_until((folder / "gate").exists, 60)
    (folder / "made").touch()
    return Multiply()


def metric(triton, name):
    return metrics_of(triton, name)["pytriton_worker_restarts_total"]


def test_requests_of_a_killed_process_fail_at_once_and_the_next_one_succeeds(triton, name, tmp_path):
    bind_held(triton, name, tmp_path)
    process = process_of(name)
    request = hold(triton, name, tmp_path)

    start = time.monotonic()
    process.kill()
    request.finish()

    assert request.ended - start < NOTICED_S
    assert request.result == f"model '{name}': the worker has gone"
    assert send_floats(triton, name, [3]) == [6]
    assert process_of(name) != process


def forking(folder, *, is_async):
    """Makes a callable that forks a process, which lives until the gate is open, and then does not return."""

    def infer(x):
        if os.fork() == 0:
            try:
                wait_until((folder / "gate").exists, 60)
            finally:
                os._exit(0)
        (folder / "entered-1").touch()
        time.sleep(1000)
        return [x]

    async def infer_later(x):
        return infer(x)

    return batch(infer_later if is_async else infer)


@pytest.mark.parametrize("is_async", [False, True], ids=["function", "coroutine"])
def test_requests_of_a_killed_process_fail_at_once_though_one_that_it_has_forked_lives(
    triton, name, tmp_path, is_async
):
    bind_floats(triton, name, ProcessInstance(forking, args=[tmp_path], kwargs={"is_async": is_async}))
    request = hold(triton, name, tmp_path)
    process = process_of(name)
    (child,) = process.children()

    start = time.monotonic()
    process.kill()
    request.finish()

    assert request.ended - start < NOTICED_S
    assert request.result == f"model '{name}': the worker has gone"
    assert is_running(child)
    (tmp_path / "gate").touch()


class CloseDescriptors:
    """Closes all descriptors, then doubles numbers, or does not return."""

    @batch
    def __call__(self, x):
        if x[0, 0] < 0:
            os.closerange(0, 65_536)
        if x[0, 0] < -1:
            time.sleep(1000)
        return [x * 2]


@pytest.mark.parametrize("number", [-1, -2], ids=["and_returns", "and_hangs"])
def test_a_process_whose_callable_closes_all_descriptors_is_replaced(triton, name, number):
    bind_floats(triton, name, ProcessInstance(CloseDescriptors), config=ONE_BY_ONE)
    assert send_floats(triton, name, [1]) == [2]
    old = process_of(name)

    start = time.monotonic()
    assert send_floats(triton, name, [number]) in ([2.0 * number], f"model '{name}': the worker has gone")
    assert send_floats(triton, name, [3]) == [6]
    assert time.monotonic() - start < 10
    assert process_of(name) != old


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_its_exit_status_is_logged(triton, name, caplog, number):
    bind_pid(triton, name, [Multiply(), ProcessInstance(Multiply)])
    process = process_of(name, 1)

    process.send_signal(number)

    restarted(name, process, 1)
    ended = f"worker process of model '{name}' (instance 1) was killed by {number.name}; restarting"
    wait_until(lambda: ended in caplog.messages)


def test_a_callable_that_exits_fails_only_its_own_request(triton, name, caplog):
    def make():
        @batch
        def infer(x):
            if x[0, 0] < 0:
                os._exit(3)
            return [x * 2]

        return infer

    bind_floats(triton, name, ProcessInstance(make))

    assert send_floats(triton, name, [-1]) == f"model '{name}': the worker has gone"
    assert send_floats(triton, name, [1]) == [2]
    assert f"worker process of model '{name}' (instance 0) exited with status 3; restarting" in caplog.messages


class ExitInTask:
    """Doubles numbers; below zero, a task exits while a thread would keep the interpreter from exiting."""

    async def __call__(self, requests):
        if requests[0]["x"][0, 0] < 0:
            threading.Thread(target=time.sleep, args=[1000]).start()
            asyncio.get_running_loop().call_soon(sys.exit, 3)
            await asyncio.sleep(1000)
        return [{"y": request["x"] * 2} for request in requests]


def test_a_process_whose_event_loop_exits_is_replaced_despite_busy_threads(triton, name, caplog):
    bind_floats(triton, name, ProcessInstance(ExitInTask), config=ONE_BY_ONE)

    request = Background(lambda: send_floats(triton, name, [-1])).finish()

    assert request.result == f"model '{name}': the worker has gone"
    assert send_floats(triton, name, [3]) == [6]
    ended = f"worker process of model '{name}' (instance 0) exited with status 3; restarting"
    assert ended in caplog.messages


def test_restarts_are_counted_on_the_metrics_endpoint(triton, name, client):
    bind_pid(triton, name, ProcessInstance(Multiply))
    assert pid_of_response(client, name) == process_of(name).pid
    assert metric(triton, name) == 0

    for number in (1, 2):
        process_of(name).kill()
        assert wait_until(lambda: served_by(client, name)) == process_of(name).pid
        assert metric(triton, name) == number
    bind_pid(triton, name, ProcessInstance(Multiply))
    pid_of_response(client, name)
    assert metric(triton, name) == 2  # as counters are, it never falls


def test_other_instances_serve_while_a_process_is_restarted(triton, name, tmp_path):
    def make(path):
        if (path / "made").exists():
            wait_until((path / "gate").exists, 60)
        (path / "made").touch()
        return Multiply()

    bind_pid(triton, name, [Multiply(), ProcessInstance(make, args=[tmp_path])], config=ONE_BY_ONE)
    process = process_of(name, 1)
    process.kill()
    restarted(name, process, 1)
    with client_of(triton, "grpc") as client:
        waiting = []

        def one_waits():
            waiting.append(Background(lambda: pid_of_response(client, name)))
            return any(each.is_alive() for each in waiting[:-5])

        wait_until(one_waits)
        assert [pid_of_response(client, name) for _ in range(20)] == [os.getpid()] * 20
        (tmp_path / "gate").touch()
        pids = {each.finish().result for each in waiting}
        assert pids == {os.getpid(), process_of(name, 1).pid}


def test_other_instances_and_models_are_unaffected(triton, name, tmp_path):
    bind_pid(triton, f"{name}_other", ProcessInstance(Multiply))
    bind_held(triton, name, tmp_path, instances=2)
    requests = [hold(triton, name, tmp_path, number) for number in (-1, -2)]
    processes = processes_of(name)
    other = process_of(f"{name}_other")

    processes[0].kill()
    wait_until(lambda: not all(request.is_alive() for request in requests))
    (tmp_path / "gate").touch()

    results = [request.finish().result for request in requests]
    assert sorted(map(type, results), key=str) == [list, str]
    assert process_of(name, 1) == processes[1]
    assert process_of(f"{name}_other") == other
    assert send_floats(triton, f"{name}_other", [1]) == [2]


def test_requests_fail_with_the_reason_while_a_process_cannot_be_restarted(triton, name, tmp_path, caplog):
    def make(path):
        if (path / "broken").exists():
            raise RuntimeError("the weights are gone")
        return Multiply()

    bind_pid(triton, name, ProcessInstance(make, args=[tmp_path]))
    (tmp_path / "broken").touch()

    process_of(name).kill()

    reason = (
        f"model '{name}' has no worker: its process cannot create its inference callable: RuntimeError: "
        "the weights are gone"
    )
    wait_until(lambda: send_floats(triton, name, [1]) == reason)
    assert send_floats(triton, name, [1]) == reason
    again = re.compile(f"model '{name}' .*: RuntimeError: the weights are gone; restarting in 0.[12] s")
    wait_until(lambda: sum(bool(again.search(line)) for line in caplog.messages) >= 2)
    (tmp_path / "broken").unlink()
    assert wait_until(lambda: send_floats(triton, name, [1]) == [2], 30)


def make_unless_broken(broken):
    if broken.exists():
        raise RuntimeError("the weights are gone")
    return Multiply()


def is_model_ready(triton, name):
    return request_json(triton, "GET", f"/v2/models/{name}/ready")[0] == 200


@pytest.mark.parametrize("then", ["repaired", "unbound"])
def test_a_model_is_not_ready_while_none_of_its_processes_can_be_restarted(triton, name, tmp_path, then):
    broken = [tmp_path / "0", tmp_path / "1"]
    bind_pid(triton, name, [ProcessInstance(make_unless_broken, args=[path]) for path in broken])
    for number, path in enumerate(broken):
        path.touch()
        assert is_model_ready(triton, name)
        process_of(name, number).kill()
    wait_until(lambda: not is_model_ready(triton, name))
    assert not is_ready(triton)

    if then == "repaired":
        broken[1].unlink()
        wait_until(lambda: is_model_ready(triton, name))
    else:
        triton.unbind(name)
    wait_until(lambda: is_ready(triton))


def test_a_process_is_restarted_though_its_folder_was_deleted(triton, name, tmp_path, monkeypatch):
    folder = tmp_path / "deleted"
    folder.mkdir()
    monkeypatch.chdir(folder)
    bind_floats(triton, name, ProcessInstance(lambda: double))
    process = process_of(name)
    assert process.cwd() == str(folder)
    monkeypatch.chdir("/")
    folder.rmdir()

    process.kill()
    assert restarted(name, process).cwd() == "/"
    assert send_floats(triton, name, [1]) == [2]


@pytest.mark.parametrize("kind", ["slow", "broken"])
def test_a_server_restarts_without_waiting_for_a_process(name, tmp_path, kind):
    def make(path, kind):
        if (path / "made").exists() and not (path / "gate").exists():
            if kind == "broken":
                raise RuntimeError("the weights are gone")
            wait_until((path / "gate").exists, 60)
        (path / "made").touch()
        return Multiply()

    def served(triton, model):
        with contextlib.suppress(OSError):
            return send_floats(triton, model, [1]) == [2]

    with running_triton() as triton:
        bind_floats(triton, "other", batch(lambda x: [2 * x]))
        bind_pid(triton, name, ProcessInstance(make, args=[tmp_path, kind]))
        triton.run()
        process, server = process_of(name), server_of(triton)
        process.kill()
        wait_until(lambda: process_of(name) != process)
        server.kill()
        wait_until(lambda: not is_running(server))

        begin = time.monotonic()
        wait_until(lambda: served(triton, "other"))
        assert time.monotonic() - begin < 5
        (tmp_path / "gate").touch()
        wait_until(lambda: served(triton, name), 30)


def test_a_request_that_waits_for_a_process_times_out(triton, name, tmp_path):
    bind_pid(triton, name, ProcessInstance(make_again_behind_gate, args=[tmp_path]))
    process = process_of(name)
    process.kill()
    restarted(name, process)

    response = send_floats(triton, name, [1], parameters={"timeout": 200_000})

    assert response == f"model '{name}': the request's timeout has passed"
    (tmp_path / "gate").touch()
    assert send_floats(triton, name, [1]) == [2]


def test_a_model_without_a_living_process_stays_loaded(triton, name, tmp_path):
    bind_pid(triton, name, ProcessInstance(make_again_behind_gate, args=[tmp_path]))
    process_of(name).kill()
    start = time.monotonic()

    # The server unloads models of processes that exited two seconds ago.
    while time.monotonic() < start + 4:
        assert request_json(triton, "GET", f"/v2/models/{name}/ready")[0] == 200
        time.sleep(0.1)
    (tmp_path / "gate").touch()
    assert send_floats(triton, name, [1]) == [2]


REMOTE = """
import sys
import numpy as np
from pytriton.model_config import Tensor
from pytriton.process import ProcessInstance
from pytriton.triton import RemoteTriton

with RemoteTriton(url=sys.argv[1], access_token=sys.argv[2]) as triton:
    tensor = Tensor((-1,), np.float32, "x")
    triton.bind("Remote", ProcessInstance(lambda: lambda requests: requests), inputs=[tensor], outputs=[tensor])
    print("ready", flush=True)
    triton.serve()
"""


def test_models_of_a_killed_remote_process_are_unloaded(triton, tmp_path):
    url, token = f"localhost:{triton.config.http_port}", triton.get_access_token()
    with Script(tmp_path, REMOTE, url, token) as script:
        assert script.line() == "ready"
        process = processes_of("Remote", script.pid)[0]
        process.kill()
        wait_until(lambda: "restarting" in script.stderr)
        ready = "/v2/models/Remote/ready"
        assert request_json(triton, "GET", ready)[0] == 200

        script.signal(signal.SIGKILL)

        wait_until(lambda: request_json(triton, "GET", ready)[0] == 400)
        assert not processes_of("Remote", script.pid) if psutil.pid_exists(script.pid) else True


def check_random_kills(triton, name, duration_s, caplog):
    def make():
        @batch
        def infer(x):
            time.sleep(0.002)
            return [x * 2]

        return infer

    instances = 3
    bind_floats(triton, name, [ProcessInstance(make)] * instances, config=ModelConfig(max_batch_size=4))
    sends = [lambda number: send_floats(triton, name, [number])] * 6
    responses, victims = kill_at_random(sends, lambda: list(processes_of(name).values()), duration_s)

    assert all(response == [2 * number] for number, response in responses if not isinstance(response, str))
    check_failures(responses, f"^model '{name}'(:| has no worker:) .*(gone|process)")
    wait_until(lambda: len(processes_of(name)) == instances, 30)
    wait_until(lambda: all_serve(triton, name, instances), 30)
    assert len([line for line in caplog.messages if "was killed by SIGKILL" in line and name in line]) == len(victims)
    assert request_json(triton, "GET", f"/v2/models/{name}/ready")[0] == 200


def all_serve(triton, name, instances):
    """Whether each process of a model has been working since the last call."""
    before = {each: process.cpu_times().user for each, process in processes_of(name).items()}
    done = threading.Event()
    loads = [Load(lambda number: send_floats(triton, name, [number]), done) for _ in range(8)]
    time.sleep(0.5)
    done.set()
    for load in loads:
        load.join()
    assert all(response == [2 * number] for load in loads for number, response in load.responses)
    after = {each: process.cpu_times().user for each, process in processes_of(name).items()}
    return len(after) == instances and all(after[each] > before.get(each, after[each]) for each in after)


@pytest.mark.slow
def test_random_kills_of_processes_lose_no_request_silently(triton, name, caplog):
    check_random_kills(triton, name, 5, caplog)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_minute_of_random_kills_of_processes_loses_no_request_silently(triton, name, caplog):
    check_random_kills(triton, name, 60, caplog)
