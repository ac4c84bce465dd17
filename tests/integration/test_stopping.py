"""Readiness, draining and stopping: ready once everything is loaded, and a stop that loses no request in flight."""

from __future__ import annotations

import _thread
import asyncio
import logging
import pathlib
import signal
import subprocess
import sysconfig
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from scripts import SERVE
from serving import (
    Background,
    InferenceServerException,
    Script,
    bind_floats,
    client_of,
    double,
    held_model,
    infer_json,
    is_ready,
    json_floats,
    request_json,
    running_triton,
    send_floats,
    servers,
    wait_until,
)

from pytriton.exceptions import PyTritonRuntimeError
from pytriton.model_config.common import ModelWarmup, WarmupInput
from pytriton.model_config.model_config import ModelConfig
from pytriton.models.model import BoundModel
from pytriton.server.local import LocalServer

X = np.ones((1, 1), np.float32)


def is_model_ready(triton, name):
    return request_json(triton, "GET", f"/v2/models/{name}/ready")[0] == 200


def warmed_up_slowly(requests):
    time.sleep(0.3)
    return [{"y": request["x"]} for request in requests]


def test_the_server_is_ready_once_every_model_is():
    zeros = WarmupInput(np.float32, (1,), zero_data=True)
    config = ModelConfig(model_warmup=[ModelWarmup("zeros", 1, {"x": zeros}, 1)])
    names = [f"Slow{number}" for number in range(3)]
    with running_triton() as triton:
        early = []

        def bind_and_run():
            for name in names:
                bind_floats(triton, name, warmed_up_slowly, config=config)
                time.sleep(0.1)  # as for loading weights
            triton.run()

        serving = Background(bind_and_run)
        while not is_ready(triton):
            early.append(triton.is_alive())
        assert all(is_model_ready(triton, name) for name in names)
        serving.finish()
        assert any(early), "it was up before, and not ready"


def test_the_server_is_ready_once_every_model_is_over_grpc():
    with running_triton() as triton:
        bind_floats(triton, "double", double)
        with client_of(triton, "grpc") as client:
            assert client.raw.is_server_live()
            assert not client.raw.is_server_ready()
            assert client.raw.is_model_ready("double")
            triton.run()
            assert client.raw.is_server_ready()


def test_without_the_guard_readiness_is_tritons_own(monkeypatch):
    monkeypatch.setenv("PYTRITON_GUARD", "0")
    with running_triton() as triton:
        bind_floats(triton, "double", double)
        assert is_ready(triton)
        triton.run()
        assert send_floats(triton, "double", [1]) == [2]


def test_readiness_ends_at_once_and_for_good_when_it_stops():
    with running_triton(exit_timeout_secs=20) as triton:
        entered, gate = held_model(triton, "hold")
        bind_floats(triton, "double", double)
        triton.run()
        request = Background(lambda: send_floats(triton, "hold", [1]))
        assert entered.wait(10)
        config = triton.config

        stopping = Background(triton.stop)
        wait_until(lambda: not is_ready(triton))
        readiness = []
        for _ in range(30):
            readiness.append(is_ready(_At(config)))
            time.sleep(0.01)
        assert not any(readiness)

        gate.set()
        assert request.finish().result == [1]
        stopping.finish()


class _At:
    """Stands for a server whose Triton object knows it no longer."""

    def __init__(self, config):
        self.config = config


def test_background_tasks_of_a_callable_clean_up_before_stop_returns():
    cleaned, tasks = threading.Event(), []

    async def wait(begun):
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.2)
            cleaned.set()

    async def infer(requests):
        begun = asyncio.Event()
        tasks.append(asyncio.create_task(wait(begun)))
        await begun.wait()
        return [{"y": request["x"]} for request in requests]

    with running_triton() as triton:
        bind_floats(triton, "background", infer)
        assert send_floats(triton, "background", [1]) == [1]
        triton.stop()
        assert cleaned.is_set()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_new_requests_are_unavailable_while_it_stops_and_those_in_flight_finish(protocol):
    with running_triton(exit_timeout_secs=20) as triton:
        entered, gate = held_model(triton, "hold")
        bind_floats(triton, "double", double)
        triton.run()
        with client_of(triton, protocol, concurrency=2) as client, client_of(triton, protocol) as other:
            request = Background(lambda: client.infer("hold", {"x": X}))
            assert entered.wait(10)
            stopping = Background(triton.stop)

            def refused():
                try:
                    other.infer("double", {"x": X})
                except InferenceServerException as error:
                    return error

            error = wait_until(refused)
            assert "the server is shutting down" in error.message()
            assert "503" in error.status() if protocol == "http" else "UNAVAILABLE" in error.status()

            gate.set()
            np.testing.assert_array_equal(request.finish().result["y"], X)
            stopping.finish()


def test_serve_returns_once_a_stop_by_another_thread_is_done():
    triton = running_triton(exit_timeout_secs=20)
    entered, gate = held_model(triton, "hold")
    serving = Background(lambda: triton.serve(monitoring_period_s=0.01))
    wait_until(lambda: is_ready(triton))
    request = Background(lambda: send_floats(triton, "hold", [1]))
    assert entered.wait(10)
    session = triton._session
    stopping = Background(triton.stop)
    wait_until(lambda: session.server is None)

    serving.join(0.3)
    assert serving.is_alive()
    gate.set()

    request.finish()
    serving.finish()
    assert serving.error is None
    assert not servers()
    stopping.finish()


def test_models_are_served_after_a_stop_that_was_interrupted_while_it_waited():
    with running_triton() as triton:
        session, held, release = triton._session, threading.Event(), threading.Event()

        def hold():
            with session.lock:
                held.set()
                release.wait(20)

        def interrupt():
            wait_until(lambda: session.models._is_stopping)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        holding = Background(hold)
        assert held.wait(20)
        interrupting = Background(interrupt)
        with pytest.raises(KeyboardInterrupt):
            triton.stop()
        release.set()
        holding.finish()
        interrupting.finish()

        bind_floats(triton, "double", double)
        triton.run()
        assert send_floats(triton, "double", [1]) == [2]


def test_requests_are_served_while_it_drains():
    drain_s = 1
    with running_triton(drain_secs=drain_s) as triton:
        bind_floats(triton, "double", double)
        triton.run()
        at = _At(triton.config)
        start = time.monotonic()
        stopping = Background(triton.stop)
        wait_until(lambda: not is_ready(at))

        served = 0
        while time.monotonic() - start < drain_s - 0.2:
            assert infer_json(at, "double", [json_floats([1])])[0] == 200
            assert not is_ready(at)
            served += 1
        stopping.finish()

        assert served > 5
        assert stopping.ended - start >= drain_s


def test_requests_that_exceed_the_exit_timeout_are_logged_and_raised(caplog):
    caplog.set_level(logging.ERROR, "pytriton")
    triton = running_triton(exit_timeout_secs=1)
    entered, gate = held_model(triton, "hold")
    serving = Background(triton.serve)
    wait_until(lambda: is_ready(triton))
    request = Background(lambda: send_floats(triton, "hold", [1]))
    assert entered.wait(10)
    triton._session.woken.set()

    serving.finish()
    gate.set()
    request.finish()

    assert isinstance(serving.error, PyTritonRuntimeError)
    assert str(serving.error) == "Requests to 'hold' took longer than the exit timeout of 1 s and are lost."
    assert str(serving.error) in caplog.text
    assert not servers()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_during_the_stop_loses_no_request(tmp_path, number):
    code = (
        SERVE
        + """
import sys
def echo(requests):
    print("entered", flush=True)
    sys.stdin.readline()
    return [{"y": request["x"]} for request in requests]

with Triton() as triton:
    triton.bind("echo", echo, [Tensor((-1,), np.float32, "x")], [Tensor((-1,), np.float32, "y")])
    print("ready", triton.config.http_port, flush=True)
    triton.serve()
"""
    )
    with Script(tmp_path, code) as script:
        at = SimpleNamespace(config=SimpleNamespace(http_port=int(script.line().split()[1])))
        script.wait_until_it_serves()
        request = Background(lambda: infer_json(at, "echo", [json_floats([1])]))
        assert script.line() == "entered"
        script.signal(number)
        wait_until(lambda: not is_ready(at))
        script.signal(number)
        script.resume()
        assert request.finish().result[0] == 200
        assert script.wait() == 0, script.stderr


def test_sigterm_with_lost_requests_has_a_nonzero_exit_status(tmp_path):
    code = (
        SERVE
        + """
import threading, urllib.request, json
from pytriton.triton import TritonConfig
entered = threading.Event()
def hang(requests):
    print("entered", flush=True)
    time.sleep(60)

triton = Triton(config=TritonConfig(exit_timeout_secs=1))
triton.bind("hang", hang, [Tensor((-1,), np.float32, "x")], [Tensor((-1,), np.float32, "y")])
with triton:
    print("ready", triton.config.http_port, flush=True)
    triton.serve()
"""
    )
    with Script(tmp_path, code) as script:
        port = int(script.line().split()[1])
        at = type("At", (), {"config": type("Config", (), {"http_port": port})})
        wait_until(lambda: is_ready(at))
        request = Background(lambda: infer_json(at, "hang", [json_floats([1])]))
        assert script.line() == "entered"
        script.wait_until_it_serves()
        script.signal(signal.SIGTERM)

        assert script.wait() == 1
        assert "Requests to 'hang' took longer than the exit timeout of 1 s and are lost." in script.stderr
        assert not script.workspaces()
        request.finish()


def test_an_interrupted_stop_still_stops_the_server():
    triton = running_triton()
    entered, gate = held_model(triton, "hold")
    triton.run()
    request = Background(lambda: send_floats(triton, "hold", [1]))
    assert entered.wait(10)

    def interrupt():
        wait_until(lambda: not is_ready(triton))
        _thread.interrupt_main()

    interruption = Background(interrupt)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        triton.stop()

    assert time.monotonic() - start < 5
    interruption.finish()
    assert not servers()
    assert not triton._session.workspace.exists()
    gate.set()
    request.finish()
    with triton:
        triton.run()
        assert send_floats(triton, "hold", [2]) == [2]


def test_models_are_served_after_a_stop_that_was_interrupted_before_they_were_unloaded(monkeypatch):
    with running_triton() as triton:
        bind_floats(triton, "double", double)
        triton.run()
        with monkeypatch.context() as patch:
            patch.setattr(LocalServer, "prepare_to_stop", lambda *_: signal.raise_signal(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                triton.stop()
        triton.run()
        assert send_floats(triton, "double", [1]) == [2]


def test_bind_raises_if_a_signal_handler_stops_the_server(monkeypatch):
    def wait_until_loaded(model):  # a process takes that time to load
        signal.raise_signal(signal.SIGUSR1)

    with running_triton() as triton:
        triton.run()
        previous = signal.signal(signal.SIGUSR1, lambda *_: triton.stop())
        try:
            monkeypatch.setattr(BoundModel, "wait_until_loaded", wait_until_loaded)
            with pytest.raises(PyTritonRuntimeError, match="The server was stopped"):
                bind_floats(triton, "late", double)
        finally:
            signal.signal(signal.SIGUSR1, previous)
        assert not servers()


def test_stop_from_a_callable_returns_at_once_and_stops_the_server():
    triton = running_triton()
    took = []

    def stop(requests):
        start = time.monotonic()
        assert triton.stop()
        took.append(time.monotonic() - start)
        return [{"y": request["x"]} for request in requests]

    bind_floats(triton, "stop", stop)
    serving = Background(triton.serve)
    wait_until(lambda: is_ready(triton))

    assert send_floats(triton, "stop", [5]) == [5]
    serving.finish(5)

    assert took[0] < 0.5
    assert serving.error is None
    wait_until(lambda: not servers())


@pytest.fixture(scope="module")
def napping(tmp_path_factory):
    """The folder of an extension that stays inside native code for a given time."""
    folder = tmp_path_factory.mktemp("napping")
    source = pathlib.Path(__file__).with_name("extensions") / "napping.cc"
    include = sysconfig.get_path("include")
    command = ["c++", "-shared", "-fPIC", f"-I{include}", "-o", str(folder / "napping.so"), str(source)]
    subprocess.run(command, check=True)
    return folder


NAP = (
    SERVE
    + """
sys.path.insert(0, sys.argv[1])
import urllib.request

import napping
from pytriton.triton import TritonConfig

entered = threading.Event()

def infer(requests):
    entered.set()
    napping.nap(3000)
    return requests

def send(port):
    try:
        urllib.request.urlopen(
            f"http://127.0.0.1:{port}/v2/models/nap/infer",
            b'{"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}',
        )
    except Exception as error:
        print(error, flush=True)

triton = Triton(config=TritonConfig(exit_timeout_secs=0))
triton.bind("nap", infer, [Tensor((-1,), np.float32, "x")], [Tensor((-1,), np.float32, "y")])
triton.run()
threading.Thread(target=send, args=[triton.config.http_port], daemon=True).start()
entered.wait(20)
triton.stop()
sys.exit(7)
"""
)


@pytest.mark.parametrize("runs", [3, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_a_callable_inside_native_code_does_not_abort_the_process(tmp_path, napping, runs):
    for _ in range(runs):
        with Script(tmp_path, NAP, napping) as script:
            assert script.wait() == 7, script.stderr
            assert "terminate called" not in script.stderr
