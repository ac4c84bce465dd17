"""Streams while models and servers come and go, streams by the thousand, and streams for minutes."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gc
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from footprint import Footprint, assert_same, settled
from serving import (
    Background,
    Script,
    bind_floats,
    client_of,
    is_running,
    running_triton,
    send_floats,
    server_of,
    servers,
    wait_until,
)
from streaming import (
    Doors,
    EventStream,
    Stream,
    answers,
    bind_stream,
    number_of,
    one_by_one,
    row,
    stream_to,
    streamed,
    together,
)

from pytriton.proxy.batch import Batch
from pytriton.triton import RemoteTriton

NOTICED_S = 1.0
EXIT_S = 4
STEP_S = 0.01
ENDED = "the model is being unloaded, or the process that serves it ends"


class Running:
    """Callables of each kind that go on for long; how many of each run is known at any time."""

    def __init__(self):
        self.counts = collections.Counter()
        self._lock = threading.Lock()

    def _add(self, kind, number):
        with self._lock:
            self.counts[kind] += number

    @property
    def total(self):
        return sum(self.counts.values())

    async def waits(self, requests):
        self._add("waits", 1)
        try:
            yield answers(requests, 0)
            await asyncio.sleep(60)
        finally:
            self._add("waits", -1)

    async def yields(self, requests):
        self._add("yields", 1)
        try:
            for value in range(10_000):
                yield answers(requests, value)
                await asyncio.sleep(STEP_S)
        finally:
            self._add("yields", -1)

    def generator(self, requests):
        self._add("generator", 1)
        try:
            for value in range(10_000):
                yield answers(requests, value)
                time.sleep(STEP_S)
        finally:
            self._add("generator", -1)

    async def coroutine(self, requests):
        self._add("coroutine", 1)
        try:
            await asyncio.sleep(60)
        finally:
            self._add("coroutine", -1)


STREAMS = ("waits", "yields", "generator")


class Ports:
    """As much of a `Triton` as clients need."""

    def __init__(self, http_port, grpc_port):
        self.config = self
        self.http_port = int(http_port)
        self.grpc_port = int(grpc_port)


def threads_of(name):
    return [each for each in threading.enumerate() if each.name in (f"pytriton-loop-{name}", f"pytriton-worker-{name}")]


def stop_in_background(triton):
    start = time.monotonic()
    stopping = Background(triton.stop)
    return start, stopping


@pytest.mark.parametrize("kind", STREAMS)
def test_stop_ends_streams_with_an_error_that_says_why(kind):
    running = Running()
    with running_triton(exit_timeout_secs=EXIT_S) as triton:
        bind_stream(triton, "m", getattr(running, kind))
        triton.run()
        with stream_to(triton) as stream:
            events = EventStream(triton, "m", {"x": 1})
            stream.send("m", 1)
            assert stream.reply().y == events.event()["y"] == 0

            start, stopping = stop_in_background(triton)
            last = stream.replies()[-1]
            *_, event = events
            assert last.error == event["error"] == f"model 'm': {ENDED}"
            assert last.at - start < EXIT_S
            assert stopping.finish().ended - start < EXIT_S + NOTICED_S
            events.drop()
    assert running.total == 0
    assert not servers()
    wait_until(lambda: not threads_of("m"))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_stop_ends_coroutines_with_an_error_that_says_why(protocol):
    running = Running()
    with running_triton(exit_timeout_secs=EXIT_S) as triton:
        bind_floats(triton, "m", running.coroutine)
        triton.run()
        with client_of(triton, protocol) as client:
            request = Background(lambda: client.infer("m", {"x": row(1)}))
            wait_until(lambda: running.total == 1)

            start, stopping = stop_in_background(triton)
            request.finish()
            assert request.error.message() == f"model 'm': {ENDED}"
            assert stopping.finish().ended - start < EXIT_S + NOTICED_S
    assert running.total == 0
    assert not servers()


def test_stop_lets_streams_end_by_themselves_and_takes_no_more():
    gate = threading.Event()

    async def infer(requests):
        yield answers(requests, 0)
        if number_of(requests) == 1:
            assert await asyncio.to_thread(gate.wait, 30)
            yield answers(requests, 1)

    with running_triton(exit_timeout_secs=20) as triton:
        bind_stream(triton, "m", infer)
        triton.run()
        ports = Ports(triton.config.http_port, triton.config.grpc_port)
        with stream_to(triton) as stream:
            stream.send("m", 1)
            assert stream.reply().y == 0
            _, stopping = stop_in_background(triton)
            error = wait_until(lambda: streamed(ports, "m", 2)[0][-1])
            assert error.startswith("Request for unknown model: 'm'")

            assert not stream.has_reply()
            gate.set()
            assert [reply.y for reply in stream.replies()] == [1, None]
        stopping.finish()


@pytest.mark.parametrize("kind", STREAMS)
def test_stop_does_not_wait_for_clients_that_keep_idle_streams_open(kind):
    def infer(requests):
        yield answers(requests, 0)

    async def infer_async(requests):
        yield answers(requests, 0)

    with running_triton(exit_timeout_secs=20) as triton:
        bind_stream(triton, "m", infer if kind == "generator" else infer_async)
        triton.run()
        with stream_to(triton) as stream, stream_to(triton) as unused:
            assert stream.send("m", 1).replies()[0].y == 0
            assert not unused.has_reply()

            start, stopping = stop_in_background(triton)
            assert stopping.finish().ended - start < 5
    assert not servers()


def test_stop_does_not_hang_on_a_generator_that_never_yields_again():
    gate = threading.Event()

    def stuck(requests):
        yield answers(requests, 0)
        gate.wait(60)

    with running_triton(exit_timeout_secs=EXIT_S) as triton:
        bind_stream(triton, "m", stuck)
        triton.run()
        with stream_to(triton) as stream:
            stream.send("m", 1)
            assert stream.reply().y == 0

            start, stopping = stop_in_background(triton)
            assert stopping.finish().ended - start < EXIT_S + 2 * NOTICED_S
            assert stream.replies()[-1].error is not None
    assert not servers()
    gate.set()
    wait_until(lambda: not threads_of("m"))


def test_stop_does_not_hang_on_a_coroutine_that_blocks_the_loop():
    gate = threading.Event()
    entered = []

    async def stuck(requests):
        entered.append(True)
        gate.wait(60)

    with running_triton(exit_timeout_secs=EXIT_S) as triton:
        bind_floats(triton, "m", stuck)
        triton.run()
        with client_of(triton, "grpc") as client:
            request = Background(lambda: client.infer("m", {"x": row(1)}))
            wait_until(lambda: entered)

            start, stopping = stop_in_background(triton)
            assert stopping.finish().ended - start < EXIT_S + 2 * NOTICED_S
            assert request.finish().error is not None
    assert not servers()
    gate.set()
    wait_until(lambda: not threads_of("m"))


def remote_triton(triton):
    return RemoteTriton(url=f"localhost:{triton.config.http_port}", access_token=triton.get_access_token())


@pytest.mark.parametrize("kind", STREAMS)
def test_unloading_a_model_ends_its_streams_and_no_others(triton, name, kind):
    running, doors = Running(), Doors()

    async def other(requests):
        yield answers(requests, 0)
        await doors.wait(1)
        yield answers(requests, 1)

    bind_stream(triton, f"{name}_other", other)
    with stream_to(triton) as goes_on, stream_to(triton) as ends:
        with remote_triton(triton) as remote:
            bind_stream(remote, name, getattr(running, kind))
            goes_on.send(f"{name}_other", 1)
            ends.send(name, 1)
            assert goes_on.reply().y == ends.reply().y == 0
            remote._exit_timeout_s = EXIT_S

            start = time.monotonic()
        assert time.monotonic() - start < EXIT_S + NOTICED_S
        assert ends.replies()[-1].error == f"model '{name}': {ENDED}"
        assert running.total == 0

        doors.open(1)
        assert [reply.y for reply in goes_on.replies()] == [1, None]


REMOTE = """
import asyncio, sys, time
import numpy as np
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import RemoteTriton

async def waits(requests):
    yield [{"y": request["x"]} for request in requests]
    await asyncio.sleep(60)

def generator(requests):
    while True:
        yield [{"y": request["x"]} for request in requests]
        time.sleep(0.01)

with RemoteTriton(url=sys.argv[1], access_token=sys.argv[2]) as triton:
    for infer_func in (waits, generator):
        triton.bind(
            f"killed_{infer_func.__name__}",
            infer_func,
            inputs=[Tensor((-1,), np.float32, "x")],
            outputs=[Tensor((-1,), np.float32, "y")],
            config=ModelConfig(decoupled=True),
        )
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_streams_of_a_killed_process_end_with_an_error(triton, tmp_path):
    with Script(tmp_path, REMOTE, f"localhost:{triton.config.http_port}", triton.get_access_token()) as script:
        assert script.line() == "ready"
        for kind in ("waits", "generator"):
            assert streamed_first(triton, f"killed_{kind}") == 1
        with stream_to(triton) as stream, stream_to(triton) as other:
            stream.send("killed_waits", 1)
            other.send("killed_generator", 1)
            events = EventStream(triton, "killed_waits", {"x": 1})
            assert stream.reply().y == other.reply().y == events.event()["y"] == 1

            start = time.monotonic()
            script.process.kill()
            ends = [stream.replies()[-1], other.replies()[-1]]
            assert [end.error for end in ends] == [
                "model 'killed_waits': the worker is gone",
                "model 'killed_generator': the worker is gone",
            ]
            assert max(end.at for end in ends) - start < NOTICED_S
            assert list(events) == [{"error": "model 'killed_waits': the worker is gone"}]
            events.drop()


def streamed_first(triton, name):
    """The first response of a stream that is then cancelled."""
    with stream_to(triton) as stream:
        return stream.send(name, 1).reply().y


SERVE = """
import asyncio, signal, sys, threading, time
import numpy as np
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

async def waits(requests):
    try:
        yield [{"y": request["x"]} for request in requests]
        await asyncio.sleep(60)
    finally:
        print("closed", flush=True)

def generator(requests):
    try:
        while True:
            yield [{"y": request["x"]} for request in requests]
            time.sleep(0.01)
    finally:
        print("closed", flush=True)

with Triton(config=TritonConfig(exit_timeout_secs=4)) as triton:
    triton.bind(
        "m",
        {"waits": waits, "generator": generator}[sys.argv[1]],
        inputs=[Tensor((-1,), np.float32, "x")],
        outputs=[Tensor((-1,), np.float32, "y")],
        config=ModelConfig(decoupled=True),
    )
    triton.run()
    print(triton.config.http_port, triton.config.grpc_port, flush=True)
    if sys.argv[2] == "serve":
        triton.serve()
    else:
        sys.stdin.readline()
"""


@pytest.mark.parametrize("kind", ["waits", "generator"])
@pytest.mark.parametrize("end", ["serve", "return"])
def test_a_script_that_ends_while_streams_run_tells_their_clients(tmp_path, kind, end):
    with Script(tmp_path, SERVE, kind, end) as script:
        ports = Ports(*script.line().split())
        (server,) = servers(script.pid)
        with stream_to(ports) as stream:
            stream.send("m", 1)
            assert stream.reply().y == 1

            start = time.monotonic()
            if end == "serve":
                script.signal(signal.SIGTERM)
            else:
                script.go_on()
            assert stream.replies()[-1].error == f"model 'm': {ENDED}"
            assert script.line() == "closed"
            assert script.wait() == 0
            assert time.monotonic() - start < EXIT_S + 2 * NOTICED_S
        assert not is_running(server)


@pytest.mark.parametrize("kind", STREAMS)
def test_nothing_is_left_of_streams_when_the_server_is_killed(kind):
    running = Running()
    triton = running_triton()
    bind_stream(triton, "m", getattr(running, kind), one_by_one(decoupled=True))
    triton.run()
    with stream_to(triton) as stream:
        for number in range(5):
            stream.send("m", number)
        wait_until(lambda: running.total == 5)

        start = time.monotonic()
        server_of(triton).kill()
        wait_until(lambda: running.total == 0)
        assert time.monotonic() - start < NOTICED_S
        assert wait_until(lambda: next((reply for reply in [stream.reply()] if reply.error), None))

        start = time.monotonic()
        triton.stop()
        assert time.monotonic() - start < NOTICED_S
    wait_until(lambda: not threads_of("m"))


@pytest.mark.parametrize("is_async", [True, False])
def test_a_stream_goes_on_to_its_end_when_its_model_is_bound_again(triton, name, is_async):
    gate = threading.Event()

    def counts_from(start):
        def infer(requests):
            yield answers(requests, start)
            assert gate.wait(30)
            yield answers(requests, start + 1)

        async def infer_async(requests):
            yield answers(requests, start)
            assert await asyncio.to_thread(gate.wait, 30)
            yield answers(requests, start + 1)

        return infer_async if is_async else infer

    bind_stream(triton, name, counts_from(0), one_by_one(decoupled=True))
    with stream_to(triton) as old, stream_to(triton) as new:
        old.send(name, 1)
        assert old.reply().y == 0

        bind_stream(triton, name, counts_from(10), one_by_one(decoupled=True))
        new.send(name, 1)
        assert new.reply().y == 10
        assert not old.has_reply()
        gate.set()
        assert [reply.y for reply in old.replies()] == [1, None]
        assert [reply.y for reply in new.replies()] == [11, None]


def test_a_coroutine_in_flight_returns_when_its_model_is_bound_again(triton, name, grpc_client):
    doors = Doors()

    async def old(requests):
        await doors.wait(number_of(requests))
        return answers(requests, 1)

    async def new(requests):
        return answers(requests, 2)

    bind_floats(triton, name, old)
    request = Background(lambda: grpc_client.infer(name, {"x": row(1)})["y"].item())
    wait_until(lambda: doors.entered)
    bind_floats(triton, name, new)

    assert send_floats(triton, name, [1]) == [2]
    doors.open(1)
    assert request.finish().result == 1


def test_a_stream_of_one_kind_may_take_the_place_of_another(triton, name):
    async def stream(requests):
        yield answers(requests, 1)
        yield answers(requests, 2)

    def generator(requests):
        yield answers(requests, 3)

    bind_stream(triton, name, stream)
    assert streamed(triton, name, 1) == ([1, 2, None], [False, False, True])
    bind_stream(triton, name, generator)
    assert streamed(triton, name, 1) == ([3, None], [False, True])
    bind_stream(triton, name, lambda requests: answers(requests, 4))
    assert streamed(triton, name, 1) == ([4], [True])
    bind_floats(triton, name, lambda requests: answers(requests, 5))
    assert send_floats(triton, name, [1]) == [5]
    bind_stream(triton, name, stream)
    assert streamed(triton, name, 1) == ([1, 2, None], [False, False, True])


def test_binding_again_and_again_leaves_no_thread(name):
    async def stream(requests):
        yield answers(requests, 1)

    def generator(requests):
        yield answers(requests, 1)

    with running_triton() as triton:
        triton.run()
        for _ in range(5):
            for infer_func in (stream, generator):
                bind_stream(triton, name, infer_func)
                assert streamed(triton, name, 1)[0] == [1, None]
    # Not before: Triton may keep a replaced model for as long as it keeps what it remembers of a stream.
    wait_until(lambda: not threads_of(name))


STREAM_COUNT = 1_000
RESPONSE_COUNT = 50


def run_a_thousand(triton, doors, run):
    """Runs so many streams at the same time; returns what each of them was answered with."""
    connections = [Stream(triton) for _ in range(4)]
    received = collections.defaultdict(list)
    try:
        for number in range(STREAM_COUNT):
            connections[number % 4].send("m", number, run, request_id=f"{number}")
        wait_until(lambda: doors.entered.count(run) == STREAM_COUNT, 60)
        doors.open(run)
        for connection in connections:
            for reply in connection.replies(STREAM_COUNT // 4, timeout_s=60):
                received[int(reply.id)].append(reply.y)
    finally:
        for connection in connections:
            connection.close()
    return received


@pytest.fixture
def thousands():
    """A server whose one model takes so many streams at a time, and the doors behind their first responses."""
    doors = Doors()

    async def infer(requests):
        number, run = requests[0]["x"][0]
        yield [[row(number)]]
        await doors.wait(int(run))
        for value in range(1, RESPONSE_COUNT):
            yield [[row(number + value)]]
            await asyncio.sleep(0)

    with running_triton() as triton:
        bind_stream(triton, "m", infer, one_by_one(decoupled=True, max_in_flight=STREAM_COUNT))
        triton.run()
        yield triton, doors


def test_a_thousand_streams_in_flight_on_one_instance_all_complete_in_order(thousands):
    received = run_a_thousand(*thousands, run=0)

    assert len(received) == STREAM_COUNT
    for number, values in received.items():
        assert values == [*range(number, number + RESPONSE_COUNT), None]


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
        """Ends only when its client goes."""
        async for step in self.yields(requests):
            yield step
        with self._one():
            yield answers(requests, -1)
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
            return answers(requests, 0)

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


def pipelines_of(triton):
    return [pipeline for model in triton._models for worker in model._workers for pipeline in worker._pipelines]


def blocks_in_use(triton):
    """Blocks of shared memory that hold requests, and such that hold responses."""
    gc.collect()
    requests = sum(type(each) is Batch for each in gc.get_objects())
    responses = 0
    for pipeline in pipelines_of(triton):
        with pipeline._replies._lock:
            responses += pipeline._arena.in_use()
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
            return running.total == 0 and not any(pipeline._flights for pipeline in pipelines_of(triton))

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


def test_clients_that_leave_at_random_leave_nothing_behind():
    check_restless_clients(10, random.Random(1))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_minutes_of_clients_that_leave_at_random_leave_nothing_behind():
    check_restless_clients(120, random.Random(2))
