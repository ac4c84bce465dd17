"""Thousands of streams, and streams for minutes."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gc
import pathlib
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from footprint import Footprint, assert_same, settled
from running_streams import STEP_S, Running
from serving import bind_floats, running_triton, wait_until
from streaming import Gates, Stream, bind_stream, number_of, one_by_one, row, streamed, together
from streaming import responses as responses_to

from pytriton.proxy.tensors.batch import Batch

STREAM_COUNT = 1_000
RESPONSE_COUNT = 50


def run_a_thousand(triton, gates, run):
    """Runs so many streams at the same time; returns the responses of each."""
    connections = [Stream(triton) for _ in range(4)]
    received = collections.defaultdict(list)
    try:
        for number in range(STREAM_COUNT):
            connections[number % 4].send("m", number, run, request_id=f"{number}")
        wait_until(lambda: gates.entered.count(run) == STREAM_COUNT, 60)
        gates.open(run)
        for connection in connections:
            for reply in connection.replies(STREAM_COUNT // 4, timeout_s=60):
                received[int(reply.id)].append(reply.y)
    finally:
        for connection in connections:
            connection.close()
    return received


@pytest.fixture
def thousands():
    """A server whose one model takes so many streams at a time, and the gates behind their first responses."""
    gates = Gates()

    async def infer(requests):
        number, run = requests[0]["x"][0]
        yield [[row(number)]]
        await gates.wait(int(run))
        for value in range(1, RESPONSE_COUNT):
            yield [[row(number + value)]]
            await asyncio.sleep(0)

    with running_triton() as triton:
        bind_stream(triton, "m", infer, one_by_one(decoupled=True, max_in_flight=STREAM_COUNT))
        triton.run()
        yield triton, gates


def test_a_thousand_streams_in_flight_on_one_instance_all_complete_in_order(thousands):
    received = run_a_thousand(*thousands, run=0)

    assert len(received) == STREAM_COUNT
    for number, values in received.items():
        assert values == [*range(number, number + RESPONSE_COUNT), None]


def test_each_of_many_plain_generators_that_never_pause_has_its_share():
    sent = collections.Counter()

    def infer(requests):
        number = number_of(requests)
        for value in range(1_000_000_000):
            yield responses_to(requests, value)
            sent[number] += 1

    with running_triton() as triton, contextlib.ExitStack() as stack:
        bind_stream(triton, "m", infer, one_by_one(decoupled=True))
        triton.run()
        for number in range(8):
            stream = stack.enter_context(contextlib.closing(Stream(triton)))
            assert stream.send("m", number).reply().y == 0
        before = sent.copy()
        time.sleep(2)
        shares = [sent[number] - before[number] for number in range(8)]
    assert min(shares) > max(shares) / 4


@pytest.mark.slow
def test_memory_returns_after_thousands_of_streams(thousands):
    triton, _ = thousands
    run_a_thousand(*thousands, run=0)
    before = Footprint(triton)
    for run in (1, 2, 3):
        run_a_thousand(*thousands, run)

    assert_same(before, settled(triton, before))
    assert blocks_in_use(triton) == (0, 0)


TRITON_KEEPS = 0.02


class Restless(Running):
    """Callables that stream as the restless clients want it: so many steps of so many floats."""

    async def waits(self, requests):
        """Ends only when its client disconnects."""
        async for step in self.yields(requests):
            yield step
        with self._one():
            yield responses_to(requests, -1)
            await asyncio.sleep(600)

    async def yields(self, requests):
        with self._one():
            for step in self._steps(requests):
                yield step
                await asyncio.sleep(STEP_S)

    def generator(self, requests):
        with self._one():
            for step in self._steps(requests):
                yield step
                time.sleep(STEP_S)

    async def coroutine(self, requests):
        with self._one():
            await asyncio.sleep(number_of(requests) * STEP_S)
            return responses_to(requests, 0)

    @contextlib.contextmanager
    def _one(self):
        self._add("any", 1)
        try:
            yield
        finally:
            self._add("any", -1)

    @staticmethod
    def _steps(requests):
        for value in range(int(max(request["x"][0, 0] for request in requests))):
            yield [
                {"y": np.full((1, int(request["x"][0, 1])), value, np.float32)} if value < request["x"][0, 0] else None
                for request in requests
            ]


def executors_of(triton):
    return [executor for model in triton._session.models for worker in model._workers for executor in worker._executors]


def blocks_in_use(triton):
    """Blocks of shared memory that hold requests, and such that hold responses."""
    gc.collect()
    requests = sum(type(each) is Batch for each in gc.get_objects())
    responses = 0
    for executor in executors_of(triton):
        with executor._responses._lock:
            responses += executor._arena.in_use()
    return requests, responses


def run_restless_clients(triton, seconds, rng):
    """Has processes stream, each until it is killed; returns how many streams and requests there were."""
    script = pathlib.Path(__file__).with_name("restless_client.py")
    ports = [str(triton.config.http_port), str(triton.config.grpc_port)]
    deadline = time.monotonic() + seconds
    done = 0
    while time.monotonic() < deadline:
        clients = [
            subprocess.Popen(
                [sys.executable, str(script), *ports, str(rng.randrange(1 << 30))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for _ in range(2)
        ]
        for client in clients:
            with client:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    client.wait(min(rng.uniform(2, 6), max(0, deadline - time.monotonic())))
                assert client.returncode is None, "a client failed"
                client.kill()
                done += client.stdout.read().count(b"\n")
    return done


def check_restless_clients(seconds, rng):
    running = Restless()
    with running_triton() as triton:
        for kind in ("waits", "yields", "generator"):
            bind_stream(triton, kind, getattr(running, kind), one_by_one(decoupled=True))
        bind_stream(triton, "together", running.yields, together(decoupled=True))
        bind_floats(triton, "coroutine", running.coroutine)
        triton.run()
        blocks = blocks_in_use(triton)  # other tests in this process may have kept requests

        def is_quiet():
            return running.total == 0 and not any(executor._in_flight for executor in executors_of(triton))

        run_restless_clients(triton, seconds / 3, rng)
        wait_until(is_quiet)
        before = Footprint(triton)
        threads = threading.active_count()
        done = run_restless_clients(triton, seconds, rng)
        assert triton.is_alive()
        assert done > seconds
        wait_until(is_quiet)
        wait_until(lambda: blocks_in_use(triton) == blocks)
        # Triton keeps the socket of some gRPC streams that are cancelled while their last response goes out, whatever
        # the backend.
        before.files["server"] += round(done * TRITON_KEEPS)
        assert_same(before, settled(triton, before))
        assert threading.active_count() <= threads + 32  # the pool of the generators may have been smaller
        for kind in ("yields", "generator", "together"):
            assert streamed(triton, kind, 2, 1)[0] == [0, 1, None]
    assert running.total == 0


@pytest.mark.slow
def test_clients_that_disconnect_at_random_leave_nothing_behind():
    check_restless_clients(10, random.Random(1))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_minutes_of_random_disconnections_leave_nothing_behind():
    check_restless_clients(120, random.Random(2))
