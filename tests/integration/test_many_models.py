"""Many models: the cost of each does not grow with their number."""

from __future__ import annotations

import contextlib
import pathlib
import resource
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
from serving import (
    HOST,
    Background,
    at_once,
    bind_floats,
    is_ready,
    metrics_of,
    needs_bundled_server,
    request_json,
    running_triton,
    send_floats,
    server_of,
    token_of,
    wait_until,
)

import pytriton.models.store as store
from pytriton.client import ModelClient
from pytriton.decorators import batch
from pytriton.exceptions import PyTritonInvalidOperationError
from pytriton.model_config import DynamicBatcher, ModelConfig
from pytriton.models.manager import FEW_MODELS
from pytriton.process import ProcessInstance
from pytriton.server.control import HttpControl

MANY = 3 * FEW_MODELS
FUTEX = {"x86_64": "202", "aarch64": "98"}
POLL = {"x86_64": ("7", "0xffffffff"), "aarch64": ("73", "0x0")}  # the call, and how it waits without a timeout


def times(factor):
    return batch(lambda x: [x * factor])


def bind_many(triton, count, first=0):
    for number in range(first, first + count):
        bind_floats(triton, f"m{number}", times(number))


def ready_models(triton):
    _, index = request_json(triton, "POST", "/v2/repository/index", headers=token_of(triton))
    return {each["name"] for each in index if each.get("state") == "READY"}


@pytest.fixture
def requests(monkeypatch):
    """The controller's requests to the server."""
    requests = []
    send = HttpControl._request

    def counting(control, method, path, *args):
        requests.append(f"{method} {path}")
        return send(control, method, path, *args)

    monkeypatch.setattr(HttpControl, "_request", counting)
    return requests


def loads_and_unloads(requests):
    return [each for each in requests if each.endswith("load")]


def test_clients_of_other_processes_reach_all_models_of_a_program_that_only_binds():
    with running_triton() as triton:
        bind_many(triton, FEW_MODELS + 2)

        wait_until(lambda: len(ready_models(triton)) == FEW_MODELS + 2)
        assert send_floats(triton, f"m{FEW_MODELS + 1}", [2]) == [2 * (FEW_MODELS + 1)]


def test_run_raises_the_error_of_a_model_loaded_in_the_background(caplog):
    def fail():
        raise ValueError("no such weights")

    with running_triton() as triton:
        bind_many(triton, FEW_MODELS)
        bind_floats(triton, "broken", ProcessInstance(fail))

        wait_until(lambda: "no such weights" in caplog.text)
        with pytest.raises(PyTritonInvalidOperationError, match="no such weights"):
            triton.run()


def test_stop_does_not_wait_for_a_factory_that_hangs_in_the_background(tmp_path):
    entered, release = tmp_path / "entered", tmp_path / "release"

    def hang():
        entered.touch()
        while not release.exists():
            time.sleep(0.05)

    with running_triton() as triton:
        bind_many(triton, FEW_MODELS)
        bind_floats(triton, "hangs", ProcessInstance(hang))
        try:
            wait_until(entered.exists)
            assert Background(triton.stop).finish().result
        finally:
            release.touch()

        triton.unbind("hangs")
        triton.run()
        assert send_floats(triton, "m3", [1]) == [3]


@pytest.mark.parametrize("count", [FEW_MODELS + 1, MANY])
def test_models_bound_before_the_start_are_unloaded_with_one_request(requests, count):
    triton = running_triton()
    bind_many(triton, count)
    triton.run()
    try:
        assert len(ready_models(triton)) == count
        assert send_floats(triton, f"m{count - 1}", [2]) == [2 * (count - 1)]
    finally:
        triton.stop()
    assert loads_and_unloads(requests) == ["POST /v2/repository/models/*/unload"]


def test_only_the_first_few_models_bound_before_run_are_loaded_one_by_one(requests):
    with running_triton() as triton:
        bind_many(triton, MANY)
        assert len(ready_models(triton)) == FEW_MODELS
        triton.run()

        assert ready_models(triton) == {f"m{number}" for number in range(MANY)}
        assert [send_floats(triton, f"m{number}", [1]) for number in range(MANY)] == [[n] for n in range(MANY)]
        assert len(loads_and_unloads(requests)) == FEW_MODELS
        assert is_ready(triton)
        assert triton.report.restarts == 0


def test_models_bound_after_run_are_loaded_at_once_whatever_their_number():
    with running_triton() as triton:
        bind_many(triton, MANY)
        triton.run()
        for number in (MANY, MANY + 1):
            bind_floats(triton, f"m{number}", times(number))
            assert send_floats(triton, f"m{number}", [1]) == [number]
        triton.unbind("m3")
        assert "m3" not in ready_models(triton)


def test_a_few_models_beyond_the_first_are_loaded_by_run_on_the_same_server():
    with running_triton() as triton:
        bind_many(triton, FEW_MODELS + 2)
        pid = triton._session.server.process.pid
        triton.run()
        assert triton._session.server.process.pid == pid
        assert len(ready_models(triton)) == FEW_MODELS + 2


def test_a_model_that_is_not_loaded_yet_can_be_replaced_and_unbound():
    with running_triton() as triton:
        bind_many(triton, MANY)
        bind_floats(triton, f"m{MANY - 1}", times(1000))
        triton.unbind(f"m{MANY - 2}")
        triton.run()
        assert send_floats(triton, f"m{MANY - 1}", [1]) == [1000]
        assert ready_models(triton) == {f"m{number}" for number in range(MANY) if number != MANY - 2}


def test_a_client_in_the_process_finds_models_that_are_not_loaded_yet():
    with running_triton() as triton:
        bind_many(triton, MANY)
        client = triton.client(f"m{MANY - 1}")
        assert client.infer_sample(np.ones(1, np.float32))["y"] == MANY - 1


@pytest.mark.parametrize("starts_early", [True, False], ids=["in a with block", "before the start"])
def test_one_of_many_models_that_the_server_refuses_is_named_by_run(monkeypatch, starts_early):
    write = store.model_config_pbtxt
    monkeypatch.setattr(
        store, "model_config_pbtxt", lambda spec, **rest: "nonsense {" if spec.name == "m40" else write(spec, **rest)
    )
    triton = running_triton()
    with contextlib.ExitStack() as stack:
        stack.callback(triton.stop)
        if starts_early:
            stack.enter_context(triton)
        bind_many(triton, MANY)
        with pytest.raises(PyTritonInvalidOperationError, match="The server cannot load model 'm40': failed to load"):
            triton.run()
        monkeypatch.undo()
        triton.run()
        assert len(ready_models(triton)) == MANY


@pytest.mark.parametrize("guard", ["1", "0"])
def test_a_request_in_flight_is_served_when_many_models_are_stopped(monkeypatch, guard):
    monkeypatch.setenv("PYTRITON_GUARD", guard)
    entered, gate = threading.Event(), threading.Event()

    @batch
    def slow(x):
        entered.set()
        gate.wait(30)
        return [x * 2]

    triton = running_triton()
    bind_many(triton, MANY)
    bind_floats(triton, "slow", slow)
    triton.run()
    try:
        request = Background(lambda: send_floats(triton, "slow", [4]))
        assert entered.wait(10)
        stopping = Background(triton.stop)
        wait_until(lambda: triton._session.server is None)
        gate.set()
        stopping.join(30)
        request.join(30)
        assert request.result == [8]
    finally:
        gate.set()
        triton.stop()


def holding_back(seconds):
    batcher = DynamicBatcher(max_queue_delay_microseconds=int(seconds * 1e6))
    return ModelConfig(max_batch_size=2, batcher=batcher)


def test_many_models_stop_at_once_in_spite_of_long_batcher_delays():
    with running_triton() as triton:
        bind_many(triton, MANY)
        bind_floats(triton, "pairs", times(2), config=holding_back(60))
        triton.run()
        assert at_once(2, lambda number: send_floats(triton, "pairs", [number])) == [[0], [2]]
        start = time.monotonic()
        triton.stop()
        assert time.monotonic() - start < 10


def test_a_request_held_back_by_a_batcher_is_served_when_many_models_stop():
    with running_triton() as triton:
        bind_many(triton, MANY)
        bind_floats(triton, "pairs", times(2), config=holding_back(1))
        triton.run()
        assert at_once(2, lambda number: send_floats(triton, "pairs", [number])) == [[0], [2]]
        request = Background(lambda: send_floats(triton, "pairs", [4]))
        wait_until(lambda: metrics_of(triton, "pairs")["nv_inference_pending_request_count"] == 1)
        triton.stop()
        request.join(30)
        assert request.result == [8]


def test_many_models_are_served_again_after_a_kill_of_the_server():
    with running_triton() as triton:
        bind_many(triton, MANY)
        triton.run()
        psutil.Process(triton._session.server.process.pid).kill()
        wait_until(lambda: triton.report.restarts == 1 and is_ready(triton), 60)
        assert [send_floats(triton, f"m{number}", [1]) for number in (0, MANY - 1)] == [[0], [MANY - 1]]


def system_calls(pid):
    """What the sleeping threads of a process wait in: the number of the system call, and its arguments."""
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            number, *arguments = (task / "syscall").read_text().split()
            if number.isdecimal():  # otherwise it is running
                yield number, arguments


def idle_workers():
    """How many worker threads of this process sleep without a timeout."""
    # futex(word, FUTEX_WAIT, value, no timeout)
    return sum(
        call in FUTEX.values() and arguments[1] == "0x0" and arguments[3] == "0x0"
        for call, arguments in system_calls("self")
    )


def idle_listeners(server):
    """How many threads of the server wait for results, or for a batch to wait for, without a timeout."""
    # poll(descriptors, 2, no timeout)
    return sum(
        arguments[1] == "0x2" and (call, arguments[2]) in POLL.values() for call, arguments in system_calls(server.pid)
    )


says_what_threads_wait_for = pytest.mark.skipif(
    not pathlib.Path("/proc/self/syscall").exists(), reason="the kernel does not say"
)


@says_what_threads_wait_for
def test_the_server_sleeps_while_coroutines_have_nothing_to_do():
    async def double(requests):
        return [{"y": request["x"] * 2} for request in requests]

    with running_triton() as triton:
        for number in range(4):
            bind_floats(triton, f"m{number}", double)
        triton.run()
        server = server_of(triton)
        for _ in range(2):
            wait_until(lambda: idle_listeners(server) == 4, 20)
            assert [send_floats(triton, f"m{number}", [number]) for number in range(4)] == [[0], [2], [4], [6]]


@says_what_threads_wait_for
def test_workers_of_idle_models_sleep_until_something_happens():
    with running_triton() as triton:
        before = idle_workers()
        bind_many(triton, 4)
        triton.run()
        wait_until(lambda: idle_workers() - before >= 4, 20)
        assert [send_floats(triton, f"m{number}", [1]) for number in range(4)] == [[n] for n in range(4)]


def test_a_client_with_many_open_files_keeps_its_connection():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("the hard limit is too low")
    with running_triton() as triton, contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
        bind_many(triton, 2)
        triton.run()
        for _ in range(1100):
            stack.enter_context(pathlib.Path("/dev/null").open())

        def connections():
            mine = psutil.Process().net_connections("tcp")
            return {each.laddr for each in mine if each.raddr and each.raddr.port == triton.config.http_port}

        with ModelClient(f"http://{HOST}:{triton.config.http_port}", "m1") as client:
            x = np.ones((1, 1), np.float32)
            client.infer_batch(x)
            first = connections()
            for _ in range(3):
                client.infer_batch(x)
            assert connections() == first


MANY_FILES = """
import numpy as np, resource
from pytriton.decorators import batch
from pytriton.model_config import Tensor
from pytriton.triton import Triton, TritonConfig

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
triton = Triton(config=TritonConfig(http_port=0, grpc_port=0, metrics_port=0))
x, y = (Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in "xy")
for number in range(60):
    triton.bind(f"m{number}", batch(lambda x: [x]), [x], [y])
triton.run()
print(len(triton.report.ready_models()), resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 256)
triton.stop()
"""


def test_the_limit_on_open_files_is_raised_for_many_models(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", MANY_FILES], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["60", "True"], done.stderr


@pytest.mark.slow
@needs_bundled_server
def test_a_thousand_models_start_serve_and_stop():
    triton = running_triton()
    with triton:
        began = time.monotonic()
        bind_many(triton, 1000)
        triton.run()
        start_s = time.monotonic() - began
        assert len(ready_models(triton)) == 1000
        for number in range(0, 1000, 100):
            assert send_floats(triton, f"m{number}", [1]) == [number]
        server = psutil.Process(triton._session.server.process.pid)
        assert server.num_threads() < 2100 and psutil.Process().num_threads() < 1200
        began = time.monotonic()
    stop_s = time.monotonic() - began
    assert start_s < 30 and stop_s < 30, (start_s, stop_s)
