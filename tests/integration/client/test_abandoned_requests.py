"""Requests that are cancelled or time out, many of them at random moments: the server keeps serving."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import queue
import random
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
from serving import HOST, bind_floats, held_model, server_of, wait_until

from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    ModelClient,
    PyTritonClientClosedError,
    PyTritonClientTimeoutError,
)
from pytriton.client.core.grpc import asyncio_transport
from pytriton.model_config import ModelConfig

X = np.ones(4, np.float32)


def url_of(triton):
    return f"grpc://{HOST}:{triton.config.grpc_port}"


def now_and_then(requests):
    time.sleep(random.random() * 0.004)
    return [{"y": request["x"]} for request in requests]


@pytest.fixture
def survives(triton):
    """The server is the same afterwards, and holds no more descriptors."""
    server = server_of(triton)
    files = server.num_fds()
    yield
    assert server_of(triton).pid == server.pid
    wait_until(lambda: server.num_fds() <= files + 20)


@pytest.mark.parametrize("count", [3_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_tasks_cancelled_at_random(triton, name, survives, count):
    bind_floats(triton, name, now_and_then, config=ModelConfig(max_batch_size=64))

    async def send(client, left):
        while left:
            left.pop()
            task = asyncio.ensure_future(client.infer_sample(X))
            await asyncio.sleep(random.random() * 0.01)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                assert (await task)["y"].tolist() == X.tolist()

    async def main():
        left = [None] * count
        async with AsyncioModelClient(url_of(triton), name) as client:
            await asyncio.gather(*[send(client, left) for _ in range(64)])

    asyncio.run(main())


@pytest.mark.parametrize("count", [3_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_short_timeouts(triton, name, survives, count):
    bind_floats(triton, name, now_and_then, config=ModelConfig(max_batch_size=64))
    left, ends = [None] * count, {"late": 0, "served": 0}

    def send():
        with ModelClient(url_of(triton), name) as client:
            client.infer_sample(X)
            while left:
                left.pop()
                try:
                    assert client.infer_sample(X, timeout_s=0.008 * random.random() + 0.002)["y"].tolist() == X.tolist()
                    ends["served"] += 1
                except PyTritonClientTimeoutError:
                    ends["late"] += 1

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for each in [pool.submit(send) for _ in range(16)]:
            each.result()
    assert ends["late"] > 0
    assert ends["served"] > 0


@pytest.mark.parametrize("count", [1_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_streams_abandoned_at_random(triton, name, survives, count):
    async def numbers(requests):
        for number in range(10):
            await asyncio.sleep(0.001)
            yield [{"y": np.full((1, 1), number, np.float32)} for _ in requests]

    bind_floats(triton, name, numbers, config=ModelConfig(decoupled=True, max_batch_size=8))

    async def send(client, left):
        while left:
            left.pop()
            wanted, expected = random.randrange(0, 12), 0
            stream = client.infer_sample(X)
            async with contextlib.aclosing(stream):
                async for response in stream:
                    assert response["y"].tolist() == [expected]
                    expected += 1
                    if expected >= wanted:
                        break

    async def main():
        left = [None] * count
        async with AsyncioDecoupledModelClient(url_of(triton), name) as client:
            await asyncio.gather(*[send(client, left) for _ in range(32)])

    asyncio.run(main())


class Steps:
    """A decoupled callable with a response every few milliseconds; notes how far it came, and when it ended."""

    def __init__(self, count):
        self.count, self.sent, self.ended = count, 0, threading.Event()

    async def __call__(self, requests):
        try:
            for _ in range(self.count):
                self.sent += 1
                yield [{"y": request["x"]} for request in requests]
                await asyncio.sleep(0.002)
        finally:
            self.ended.set()


@pytest.mark.parametrize(("count", "is_cancelled"), [(50, False), (10_000, True)])
def test_an_abandoned_stream_is_cancelled_unless_it_ends_soon(triton, name, survives, count, is_cancelled):
    steps = Steps(count)
    bind_floats(triton, name, steps, config=ModelConfig(decoupled=True))
    with DecoupledModelClient(url_of(triton), name) as client:
        next(client.infer_sample(X))
        assert steps.ended.wait(10)
    assert (steps.sent < count) == is_cancelled


def test_an_abandoned_idle_stream_ends_at_once(triton, name, survives):
    ended = threading.Event()

    async def waits(requests):
        try:
            yield [{"y": request["x"]} for request in requests]
            await asyncio.sleep(60)
        finally:
            ended.set()

    bind_floats(triton, name, waits, config=ModelConfig(decoupled=True))
    with DecoupledModelClient(url_of(triton), name) as client:
        next(client.infer_sample(X))
        started = time.monotonic()
        assert ended.wait(10)
        assert time.monotonic() - started < 1


@pytest.mark.parametrize("count", [100, pytest.param(3_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_clients_closed_with_requests_in_flight(triton, name, survives, count):
    bind_floats(triton, name, now_and_then, config=ModelConfig(max_batch_size=64))
    ends = {"served": 0, "closed": 0}

    async def send(client):
        try:
            assert (await client.infer_sample(X))["y"].tolist() == X.tolist()
            ends["served"] += 1
        except PyTritonClientClosedError:
            ends["closed"] += 1

    async def main():
        for _ in range(count):
            client = AsyncioModelClient(url_of(triton), name)
            await client.infer_sample(X)
            tasks = [asyncio.ensure_future(send(client)) for _ in range(20)]
            await asyncio.sleep(random.random() * 0.02)
            await client.close()
            await asyncio.gather(*tasks)

    asyncio.run(main())
    assert ends["served"] + ends["closed"] == 20 * count
    assert ends["closed"] > 0


@pytest.mark.parametrize("timeout_s", [0.004, 30])
@pytest.mark.parametrize("count", [100, pytest.param(3_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_blocking_clients_closed_with_requests_in_flight(triton, name, survives, count, timeout_s):
    bind_floats(triton, name, now_and_then, config=ModelConfig(max_batch_size=64))
    ends = collections.Counter()

    def send(client):
        try:
            assert client.infer_sample(X)["y"].tolist() == X.tolist()
            ends["served"] += 1
        except (PyTritonClientClosedError, PyTritonClientTimeoutError) as error:
            ends[type(error).__name__] += 1

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(count):
            client = ModelClient(url_of(triton), name, inference_timeout_s=timeout_s)
            sent = [pool.submit(send, client) for _ in range(8)]
            time.sleep(random.random() * 0.02)
            client.close()
            for each in sent:
                each.result()

    assert ends.total() == 8 * count


def test_a_request_that_timed_out_is_finished_and_its_response_dropped(triton, name):
    entered, gate = held_model(triton, name)
    with ModelClient(url_of(triton), name) as client:
        with pytest.raises(PyTritonClientTimeoutError, match=r"did not respond within 0\.2 s"):
            client.infer_sample(X, timeout_s=0.2)
        assert entered.is_set()
        gate.set()
        assert client.infer_sample(X)["y"].tolist() == X.tolist()


@pytest.fixture
def cancelled(triton, name):
    """Binds a model that takes a second and a half; a queue of whether each of its requests was cancelled by then."""
    cancelled = queue.Queue()

    def watch(requests):
        time.sleep(1.5)
        cancelled.put(requests[0].is_cancelled())
        return [{"y": request["x"]} for request in requests]

    bind_floats(triton, name, watch, config=ModelConfig(max_batch_size=1))
    return cancelled


def test_a_blocking_client_is_closed_at_once_and_its_connection_later(triton, name, survives, cancelled):
    with ModelClient(url_of(triton), name, inference_timeout_s=0.1) as client:
        with pytest.raises(PyTritonClientTimeoutError):
            client.infer_sample(X)
        started = time.monotonic()
    assert time.monotonic() - started < 1
    assert cancelled.get(timeout=10) is False
    wait_until(lambda: not any(thread.name == "pytriton-closing" for thread in threading.enumerate()))


@pytest.mark.parametrize("ending", ["", "client.close()", "client.close(); child = os.fork(); child and os.wait()"])
def test_a_program_ends_when_the_server_has_read_its_requests(triton, name, survives, cancelled, ending):
    program = f"""
import contextlib, os
from pytriton.client import ModelClient, PyTritonClientTimeoutError
client = ModelClient("{url_of(triton)}", "{name}", inference_timeout_s=0.1)
with contextlib.suppress(PyTritonClientTimeoutError):
    client.infer_sample([1])
{ending}
"""
    ended = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60)
    printed = [line for line in ended.stderr.splitlines() if "skipping fork() handlers" not in line]  # by gRPC
    assert (ended.returncode, printed) == (0, [])
    assert cancelled.get(timeout=10) is False


@pytest.mark.parametrize("timeout_s", [0.1, 1.1])
def test_an_asyncio_client_is_closed_when_the_server_has_read_its_requests(
    triton, name, survives, timeout_s, monkeypatch
):
    monkeypatch.setattr(asyncio_transport, "CLOSING_TIMEOUT_S", 1.0)
    entered, gate = held_model(triton, name)

    async def main():
        async with AsyncioModelClient(url_of(triton), name) as client:
            with pytest.raises(PyTritonClientTimeoutError):
                await client.infer_sample(X, timeout_s=timeout_s)
            started = time.monotonic()
        return time.monotonic() - started

    duration_s = asyncio.run(main())
    gate.set()
    assert entered.is_set()
    assert (duration_s < 0.5) == (timeout_s > 1)


def test_a_client_with_abandoned_requests_closes_promptly(triton, name):
    entered, gate = held_model(triton, name)

    async def main():
        async with AsyncioModelClient(url_of(triton), name) as client:
            with pytest.raises(PyTritonClientTimeoutError):
                await client.infer_sample(X, timeout_s=0.2)
            start = time.monotonic()
        return time.monotonic() - start

    assert asyncio.run(main()) < 5
    assert entered.is_set()
    gate.set()


def test_threads_of_abandoned_requests_end(triton, name):
    bind_floats(triton, name, now_and_then)
    process = psutil.Process()
    for _ in range(3):
        with ModelClient(url_of(triton), name) as client:
            client.infer_sample(X)
            with contextlib.suppress(PyTritonClientTimeoutError):
                client.infer_sample(X, timeout_s=0.001)
    before = threading.active_count(), process.num_fds()
    for _ in range(20):
        with ModelClient(url_of(triton), name) as client:
            client.infer_sample(X)
            with contextlib.suppress(PyTritonClientTimeoutError):
                client.infer_sample(X, timeout_s=0.001)
    wait_until(lambda: threading.active_count() <= before[0] + 2 and process.num_fds() <= before[1] + 10)
