"""Requests across restarts of the server: sent again by default, and each response is right."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time

import numpy as np
import pytest
from client_kinds import open_client
from serving import HOST, bind_floats, held_model, running_triton, server_of, wait_until

from pytriton.client import (
    AsyncioModelClient,
    Failure,
    ModelClient,
    PyTritonClientInferenceServerError,
    PyTritonClientValueError,
)
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig

double = batch(lambda x: [x * 2])
SLOWEST_S = 2


@pytest.fixture
def triton():
    with running_triton() as triton:
        bind_floats(triton, "double", double, config=ModelConfig(max_batch_size=64))
        triton.run()
        yield triton


def url_of(triton, protocol):
    return f"{protocol}://{HOST}:{getattr(triton.config, f'{protocol}_port')}"


def kill(triton):
    before = server_of(triton)
    before.kill()
    wait_until(lambda: not before.is_running() or before.status() == "zombie")


def test_a_request_after_a_restart_is_answered(triton, kind, protocol):
    with open_client(kind, url_of(triton, protocol), "double") as client:
        for number in range(5):
            assert client.infer_sample(np.float32([number]))["y"] == [2 * number]
            kill(triton)


def test_a_request_in_flight_is_sent_again(triton, kind, protocol):
    entered, gate = held_model(triton, "hold")
    with open_client(kind, url_of(triton, protocol), "hold") as client:
        gate.set()
        client.infer_sample(np.float32([1]))
        entered.clear()
        gate.clear()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            request = pool.submit(client.infer_sample, np.float32([2]))
            assert entered.wait(10)
            gate.set()
            kill(triton)
            assert request.result(20)["y"] == [2]


def test_a_server_that_stays_away_is_given_up_after_a_while(triton, protocol):
    url = url_of(triton, protocol)
    with ModelClient(url, "double", restart_timeout_s=0.5) as client:
        client.infer_sample(np.float32([1]))
        triton.stop()
        start = time.monotonic()
        with pytest.raises(PyTritonClientInferenceServerError) as caught:
            client.infer_sample(np.float32([1]))
        assert 0.3 < time.monotonic() - start < 3
        assert caught.value.failure is Failure.UNREACHABLE


def test_without_a_time_for_restarts_a_request_fails_at_once(triton, protocol):
    with ModelClient(url_of(triton, protocol), "double", restart_timeout_s=0) as client:
        client.infer_sample(np.float32([1]))
        triton.stop()
        start = time.monotonic()
        with pytest.raises(PyTritonClientInferenceServerError):
            client.infer_sample(np.float32([1]))
        assert time.monotonic() - start < 0.5


def test_a_server_that_never_responded_is_not_waited_for(protocol):
    with ModelClient(f"{protocol}://{HOST}:1", "any", init_timeout_s=0.3, lazy_init=True) as client:
        start = time.monotonic()
        with pytest.raises(Exception, match=r"did not|not ready|took longer|reached"):
            client.infer_sample(np.float32([1]))
        assert time.monotonic() - start < 2


@pytest.mark.parametrize("seconds", [-1, "1", True])
def test_a_time_for_restarts_that_is_none_is_refused(seconds):
    with pytest.raises(PyTritonClientValueError, match="restart_timeout_s"):
        ModelClient("localhost", "any", restart_timeout_s=seconds)


def load_of(triton, count, kills):
    """Sends requests by all kinds of clients while the server is killed; returns wrong ones and the slowest."""
    wrong, slowest, sent, done = [], [0.0], [0], threading.Event()
    lock = threading.Lock()

    def note(number, response, started):
        with lock:
            slowest[0] = max(slowest[0], time.monotonic() - started)
            sent[0] += 1
            if response["y"].tolist() != [2 * number]:
                wrong.append((number, response))

    def blocking(protocol):
        with ModelClient(url_of(triton, protocol), "double") as client:
            while sent[0] < count or not done.is_set():
                number, started = sent[0] % 1000, time.monotonic()
                note(number, client.infer_sample(np.float32([number])), started)

    def asynchronous(protocol):
        async def send(client):
            while sent[0] < count or not done.is_set():
                number, started = sent[0] % 1000, time.monotonic()
                note(number, await client.infer_sample(np.float32([number])), started)

        async def main():
            async with AsyncioModelClient(url_of(triton, protocol), "double") as client:
                await asyncio.gather(*[send(client) for _ in range(8)])

        asyncio.run(main())

    def kill_now_and_then():
        for number in range(kills):
            wait_until(lambda number=number: sent[0] >= number * count // kills, 600)
            kill(triton)
        done.set()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        work = [pool.submit(each, protocol) for each in (blocking, asynchronous) for protocol in ("http", "grpc")]
        work.append(pool.submit(kill_now_and_then))
        for each in work:
            each.result()
    return wrong, slowest[0], sent[0]


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_no_request_is_lost_or_wrong_over_ten_kills(triton, count):
    wrong, slowest, sent = load_of(triton, count, kills=10)

    assert not wrong
    assert sent >= count
    assert slowest <= SLOWEST_S
