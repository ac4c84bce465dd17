"""Callables that hang: their stack is logged, the model is not ready, and a process instance is replaced."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import logging
import re
import sys
import threading
import time
import urllib.request

import cloudpickle
import pytest
from processes import process_of
from serving import HOST, Background, bind_floats, is_ready, request_json, running_triton, send_floats, wait_until
from streaming import responses

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config import ModelConfig
from pytriton.process import ProcessInstance

cloudpickle.register_pickle_by_value(sys.modules[__name__])

WATCHDOG_S = 0.3
WATCHED = ModelConfig(watchdog_secs=WATCHDOG_S)


@pytest.fixture(scope="module")
def triton():
    with running_triton() as triton:
        triton.run()
        yield triton


def is_model_ready(triton, name):
    return request_json(triton, "GET", f"/v2/models/{name}/ready")[0] == 200


def hangs(triton):
    with urllib.request.urlopen(f"http://{HOST}:{triton.config.metrics_port}/metrics") as metrics:
        return float(re.search(r"\npytriton_hanging_calls_total (\S+)", metrics.read().decode())[1])


def stream_numbers(triton, name):
    """Reads a stream to its end; returns the number of its responses."""
    request = urllib.request.Request(
        f"http://{HOST}:{triton.config.http_port}/v2/models/{name}/generate_stream",
        b'{"x": [1.0]}',
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as response:
        return response.read().count(b"data:")


class Hanging:
    """A callable of any kind that hangs for as long as its gate is closed."""

    def __init__(self):
        self.gate = threading.Event()

    def function(self, requests):
        self.gate.wait(30)
        return [{"y": request["x"]} for request in requests]

    async def coroutine(self, requests):
        while not self.gate.is_set():
            await asyncio.sleep(0.01)
        return [{"y": request["x"]} for request in requests]

    def generator(self, requests):
        self.gate.wait(30)
        yield [{"y": request["x"]} for request in requests]


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_a_hanging_call_is_logged_with_its_stack_and_makes_the_model_unready(triton, name, kind, caplog):
    hanging = Hanging()
    bind_floats(triton, name, getattr(hanging, kind), config=WATCHED)
    bind_floats(triton, f"{name}_other", lambda requests: [{"y": request["x"]} for request in requests])
    before = hangs(triton)
    request = Background(lambda: send_floats(triton, name, [1]))

    wait_until(lambda: not is_model_ready(triton, name))
    assert not is_ready(triton)
    assert is_model_ready(triton, f"{name}_other")
    assert send_floats(triton, f"{name}_other", [2]) == [2]
    (report,) = (text for text in caplog.messages if "has taken more than 0.3 s" in text)
    assert f"in {kind}" in report
    assert hangs(triton) == before + 1

    hanging.gate.set()
    assert request.finish().result == [1]
    wait_until(lambda: is_model_ready(triton, name))
    wait_until(lambda: is_ready(triton))


def test_a_model_is_ready_again_once_the_last_hanging_call_has_ended(triton, name):
    gates = [threading.Event(), threading.Event()]

    async def wait_for_gate(requests):
        while not gates[int(requests[0]["x"].item())].is_set():
            await asyncio.sleep(0.01)
        return [{"y": request["x"]} for request in requests]

    bind_floats(triton, name, wait_for_gate, config=WATCHED)
    before = hangs(triton)
    requests = []
    for number in range(2):
        requests.append(Background(lambda number=number: send_floats(triton, name, [number])))
        wait_until(lambda number=number: hangs(triton) == before + number + 1)

    gates[0].set()
    assert requests[0].finish().result == [0]
    assert not is_model_ready(triton, name)
    gates[1].set()
    assert requests[1].finish().result == [1]
    wait_until(lambda: is_model_ready(triton, name))
    assert is_ready(triton)


def test_quick_calls_are_not_reported(triton, name, caplog):
    bind_floats(triton, name, lambda requests: [{"y": request["x"]} for request in requests], config=WATCHED)
    end = time.monotonic() + 3 * WATCHDOG_S
    while time.monotonic() < end:
        assert send_floats(triton, name, [1]) == [1]
    assert is_model_ready(triton, name)
    assert "has taken more than" not in caplog.text


def test_a_stream_that_takes_its_steps_in_time_is_not_reported(triton, name, caplog):
    async def numbers(requests):
        for number in range(6):
            await asyncio.sleep(WATCHDOG_S / 3)
            yield responses(requests, number)

    config = ModelConfig(decoupled=True, watchdog_secs=WATCHDOG_S)
    bind_floats(triton, name, numbers, config=config)
    assert stream_numbers(triton, name) == 6
    assert "has taken more than" not in caplog.text


def test_a_stream_that_continues_no_longer_hangs(triton, name):
    gates = [threading.Event(), threading.Event()]
    is_over = threading.Event()

    async def numbers(requests):
        for number, gate in enumerate(gates):
            while not gate.is_set():
                await asyncio.sleep(0.01)
            yield responses(requests, number)
        while not is_over.is_set():
            await asyncio.sleep(0.01)
            yield responses(requests, 2)

    bind_floats(triton, name, numbers, config=ModelConfig(decoupled=True, watchdog_secs=WATCHDOG_S))
    request = Background(lambda: stream_numbers(triton, name))
    for gate in gates:
        wait_until(lambda: not is_model_ready(triton, name))
        gate.set()
        wait_until(lambda: is_model_ready(triton, name))
    is_over.set()
    assert request.finish().result > len(gates)


def hang_on_negative():
    def infer(requests):
        for request in requests:
            if (request["x"] < 0).any():
                time.sleep(60)
        return [{"y": request["x"]} for request in requests]

    return infer


def test_a_process_that_hangs_is_replaced_and_its_requests_fail(triton, name):
    bind_floats(triton, name, ProcessInstance(hang_on_negative), config=WATCHED)
    before = process_of(name).pid
    start = time.monotonic()

    error = send_floats(triton, name, [-1])

    assert time.monotonic() - start < 5
    assert "the worker has gone" in error
    wait_until(lambda: send_floats(triton, name, [3]) == [3])
    assert process_of(name).pid != before
    wait_until(lambda: is_model_ready(triton, name))


def test_a_process_that_is_stopped_is_replaced(triton, name, caplog):
    bind_floats(triton, name, ProcessInstance(hang_on_negative), config=WATCHED)
    before = process_of(name)
    before.suspend()

    assert "the worker has gone" in send_floats(triton, name, [1])
    wait_until(lambda: send_floats(triton, name, [3]) == [3])
    assert not before.is_running()
    assert "has not responded for 1.5 s, and is killed" in caplog.text


def hold_the_gil_at_once():
    def infer(requests):
        faulthandler.dump_traceback_later(3600)  # of the program's own, in place of the watchdog's
        ctypes.PyDLL(None).sleep(60)
        return [{"y": request["x"]} for request in requests]

    return infer


def test_a_process_whose_callable_replaces_the_timer_is_replaced_too(triton, name):
    bind_floats(triton, name, ProcessInstance(hold_the_gil_at_once), config=WATCHED)
    start = time.monotonic()

    assert "the worker has gone" in send_floats(triton, name, [1])
    assert time.monotonic() - start < 10


def lose_stderr():
    class StreamToLogger:
        def write(self, text):
            pass

    def infer(requests):
        sys.stderr = StreamToLogger()
        for request in requests:
            if (request["x"] < 0).any():
                ctypes.PyDLL(None).sleep(60)
            if (request["x"] > 1).any():
                time.sleep(60)
        return [{"y": request["x"]} for request in requests]

    return infer


@pytest.mark.parametrize("number", [-1, 2], ids=["holding_the_gil", "releasing_the_gil"])
def test_a_process_without_a_real_stderr_is_replaced_if_it_hangs_and_not_before(triton, name, number):
    bind_floats(triton, name, ProcessInstance(lose_stderr), config=WATCHED)
    process = process_of(name)
    end = time.monotonic() + 3 * WATCHDOG_S
    while time.monotonic() < end:
        assert send_floats(triton, name, [1]) == [1]

    assert process_of(name) == process
    assert "the worker has gone" in send_floats(triton, name, [number])
    wait_until(lambda: send_floats(triton, name, [1]) == [1])


def test_without_a_watchdog_nothing_is_reported(triton, name, caplog):
    caplog.set_level(logging.WARNING)
    hanging = Hanging()
    bind_floats(triton, name, hanging.function)
    request = Background(lambda: send_floats(triton, name, [1]))
    time.sleep(2 * WATCHDOG_S)
    assert is_model_ready(triton, name)
    hanging.gate.set()
    assert request.finish().result == [1]
    assert "has taken more than" not in caplog.text


@pytest.mark.parametrize("seconds", [0, -1, "1", True])
def test_an_invalid_number_of_seconds_is_refused(seconds):
    with pytest.raises(PyTritonBadParameterError, match=r"ModelConfig\.watchdog_secs is"):
        ModelConfig(watchdog_secs=seconds)


def test_hashes_of_names_equal_those_of_the_guard(triton):
    for name in ["a" * 200, "x.y_z~1"]:
        hanging = Hanging()
        bind_floats(triton, name, hanging.function, config=WATCHED)
        request = Background(lambda name=name: send_floats(triton, name, [1]))
        wait_until(lambda name=name: not is_model_ready(triton, name))
        hanging.gate.set()
        request.finish()
        wait_until(lambda name=name: is_model_ready(triton, name))
