"""Streams while models are unloaded and servers stop."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import pytest
from running_streams import STREAMS, Running, threads_of
from serving import (
    Background,
    Script,
    bind_floats,
    client_of,
    is_running,
    running_triton,
    server_of,
    servers,
    wait_until,
)
from streaming import EventStream, Gates, bind_stream, number_of, one_by_one, responses, row, stream_to, streamed

from pytriton.triton import RemoteTriton

NOTICED_S = 1.0
EXIT_S = 4
ENDED = "the model is being unloaded, or the process that serves it is exiting"


class Ports:
    """As much of a `Triton` as clients need."""

    def __init__(self, http_port, grpc_port):
        self.config = self
        self.http_port = int(http_port)
        self.grpc_port = int(grpc_port)


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


def test_stop_lets_streams_finish_and_accepts_no_more():
    gate = threading.Event()

    async def infer(requests):
        yield responses(requests, 0)
        if number_of(requests) == 1:
            assert await asyncio.to_thread(gate.wait, 30)
            yield responses(requests, 1)

    with running_triton(exit_timeout_secs=20) as triton:
        bind_stream(triton, "m", infer)
        triton.run()
        ports = Ports(triton.config.http_port, triton.config.grpc_port)
        with stream_to(triton) as stream:
            stream.send("m", 1)
            assert stream.reply().y == 0
            _, stopping = stop_in_background(triton)
            error = wait_until(lambda: streamed(ports, "m", 2)[0][-1])
            assert error == "the server is shutting down"

            assert not stream.has_reply()
            gate.set()
            assert [reply.y for reply in stream.replies()] == [1, None]
        stopping.finish()


@pytest.mark.parametrize("kind", STREAMS)
def test_stop_does_not_wait_for_clients_that_keep_idle_streams_open(kind):
    def infer(requests):
        yield responses(requests, 0)

    async def infer_async(requests):
        yield responses(requests, 0)

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
        yield responses(requests, 0)
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
    running, gates = Running(), Gates()

    async def other(requests):
        yield responses(requests, 0)
        await gates.wait(1)
        yield responses(requests, 1)

    bind_stream(triton, f"{name}_other", other)
    with stream_to(triton) as goes_on, stream_to(triton) as ends:
        with remote_triton(triton) as remote:
            bind_stream(remote, name, getattr(running, kind))
            goes_on.send(f"{name}_other", 1)
            ends.send(name, 1)
            assert goes_on.reply().y == ends.reply().y == 0
            remote._session.exit_timeout_s = EXIT_S

            start = time.monotonic()
        assert time.monotonic() - start < EXIT_S + NOTICED_S
        assert ends.replies()[-1].error == f"model '{name}': {ENDED}"
        assert running.total == 0

        gates.open(1)
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
                "model 'killed_waits': the worker has gone",
                "model 'killed_generator': the worker has gone",
            ]
            assert max(end.at for end in ends) - start < NOTICED_S
            assert list(events) == [{"error": "model 'killed_waits': the worker has gone"}]
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
def test_a_script_that_exits_during_streams_ends_them_with_an_error(tmp_path, kind, end):
    with Script(tmp_path, SERVE, kind, end) as script:
        ports = Ports(*script.line().split())
        (server,) = servers(script.pid)
        with stream_to(ports) as stream:
            stream.send("m", 1)
            assert stream.reply().y == 1

            if end == "serve":
                script.wait_until_it_serves()
            start = time.monotonic()
            if end == "serve":
                script.signal(signal.SIGTERM)
            else:
                script.resume()
            assert stream.replies()[-1].error == f"model 'm': {ENDED}"
            assert script.line() == "closed"
            assert script.wait() == 0
            assert time.monotonic() - start < EXIT_S + 2 * NOTICED_S
        assert not is_running(server)


@pytest.mark.parametrize("kind", STREAMS)
def test_a_killed_server_leaves_nothing_of_its_streams(kind):
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
