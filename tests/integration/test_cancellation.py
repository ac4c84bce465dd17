"""Requests that nobody waits for any more: their callables are told within a second, and nobody else notices."""

from __future__ import annotations

import asyncio
import logging
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tritonclient.grpc
from serving import (
    HOST,
    Background,
    InferenceServerException,
    bind_floats,
    infer_json,
    json_floats,
    request_json,
    send_floats,
    wait_until,
)
from streaming import (
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

from pytriton.proxy.types import Response

NOTICED_S = 1.0
FOREVER = 10_000
STEP_S = 0.01


class Watched:
    """Callables of each kind that would go on for long; tells when they were entered, and when and how they ended."""

    def __init__(self):
        self.entered = 0
        self.ended = []

    def _end(self, how):
        self.ended.append((how, time.monotonic()))

    async def waits(self, requests):
        """An async generator that yields once, and then only waits."""
        self.entered += 1
        try:
            yield answers(requests, 0)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self._end("cancelled")
            raise
        except GeneratorExit:
            self._end("closed")
            raise
        finally:
            self._end("finally")

    async def yields(self, requests):
        """An async generator that yields again and again."""
        self.entered += 1
        try:
            for value in range(FOREVER):
                yield answers(requests, value)
                await asyncio.sleep(STEP_S)
        finally:
            self._end("finally")

    async def yields_at_once(self, requests):
        """An async generator that never awaits anything."""
        self.entered += 1
        try:
            for value in range(1_000_000_000):
                yield answers(requests, value)
        finally:
            self._end("finally")

    def generator(self, requests):
        self.entered += 1
        try:
            for value in range(FOREVER):
                yield answers(requests, value)
                time.sleep(STEP_S)
        finally:
            self._end("finally")

    async def coroutine(self, requests):
        self.entered += 1
        try:
            await asyncio.sleep(60)
        finally:
            self._end("finally")

    def plain(self, requests):
        """A plain function that asks whether its request is cancelled."""
        self.entered += 1
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if requests[0].is_cancelled():
                break
            time.sleep(STEP_S)
        self._end("is_cancelled")
        return requests

    def wait_for_end(self, since):
        """Waits for the end of what runs, and checks that it took less than a second."""
        wait_until(lambda: self.ended, 10, "the end of the callable")
        assert self.ended[-1][1] - since < NOTICED_S


STREAMS = ("waits", "yields", "yields_at_once", "generator")


@pytest.fixture
def watched():
    return Watched()


def start_unary(triton, name, number=1, **options):
    """Sends a request over gRPC; returns its context, which can cancel it, and the list that its error goes to."""
    client = tritonclient.grpc.InferenceServerClient(f"{HOST}:{triton.config.grpc_port}")
    tensor = tritonclient.grpc.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(row(number))
    answered = []
    context = client.async_infer(name, [tensor], lambda result, error: answered.append(error or result), **options)
    return context, answered


def unwanted_records(caplog):
    """What the log holds that must not be there for a cancelled request."""
    return [
        record
        for record in caplog.records
        if record.name.startswith(("pytriton", "asyncio")) and record.levelno >= logging.WARNING
    ]


@pytest.fixture
def quiet_log(caplog):
    """Checks that nothing is logged as a warning or an error."""
    caplog.set_level(logging.INFO)
    yield
    assert not unwanted_records(caplog)


@pytest.mark.usefixtures("quiet_log")
@pytest.mark.parametrize("kind", STREAMS)
def test_a_grpc_stream_that_is_cancelled_closes_the_generator(triton, name, watched, kind):
    bind_stream(triton, name, getattr(watched, kind))
    with stream_to(triton) as stream:
        stream.send(name, 1)
        assert stream.reply().y == 0

        cancelled = time.monotonic()
        stream.cancel()
        watched.wait_for_end(cancelled)


@pytest.mark.usefixtures("quiet_log")
@pytest.mark.parametrize("kind", STREAMS)
def test_an_http_client_that_drops_an_event_stream_closes_the_generator(triton, name, watched, kind):
    bind_stream(triton, name, getattr(watched, kind))
    events = EventStream(triton, name, {"x": 1})
    assert events.event()["y"] == 0

    dropped = time.monotonic()
    events.drop()
    watched.wait_for_end(dropped)


def test_an_async_generator_that_waits_is_cancelled_and_then_closed(triton, name, watched):
    bind_stream(triton, name, watched.waits)
    with stream_to(triton) as stream:
        stream.send(name, 1)
        assert stream.reply().y == 0

    wait_until(lambda: len(watched.ended) == 2)
    assert [how for how, _ in watched.ended] == ["cancelled", "finally"]


def test_an_http_client_that_drops_before_the_first_event_is_noticed_at_the_first(triton, name):
    entered, gate = threading.Event(), threading.Event()
    closed = []

    async def infer(requests):
        entered.set()
        assert await asyncio.to_thread(gate.wait, 30)
        try:
            for value in range(FOREVER):
                yield answers(requests, value)
                await asyncio.sleep(STEP_S)
        finally:
            closed.append(time.monotonic())

    bind_stream(triton, name, infer)
    events = EventStream(triton, name, {"x": 1})
    assert entered.wait(30)
    events.drop()
    gate.set()

    wait_until(lambda: closed, NOTICED_S)


KILLED = """
import sys
sys.path.insert(0, sys.argv[1])
from types import SimpleNamespace
from streaming import EventStream, Stream

triton = SimpleNamespace(config=SimpleNamespace(http_port=int(sys.argv[2]), grpc_port=int(sys.argv[3])))
if sys.argv[5] == "grpc":
    stream = Stream(triton).send(sys.argv[4], 1)
    print(stream.reply().y, flush=True)
else:
    events = EventStream(triton, sys.argv[4], {"x": 1})
    print(events.event()["y"], flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("quiet_log")
@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("kind", ["waits", "yields", "generator"])
def test_a_client_whose_process_is_killed_leaves_no_generator(triton, name, watched, kind, protocol):
    bind_stream(triton, name, getattr(watched, kind))
    folder = str(pathlib.Path(__file__).parent)
    ports = [str(triton.config.http_port), str(triton.config.grpc_port)]
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, folder, *ports, name, protocol],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert float(process.stdout.readline()) == 0

        killed = time.monotonic()
        process.send_signal(signal.SIGKILL)
        watched.wait_for_end(killed)


@pytest.mark.usefixtures("quiet_log")
@pytest.mark.parametrize("kind", ["coroutine", "plain"])
def test_a_grpc_request_that_is_cancelled_ends_its_callable(triton, name, watched, kind):
    bind_floats(triton, name, getattr(watched, kind))
    context, answered = start_unary(triton, name)
    wait_until(lambda: watched.entered)

    cancelled = time.monotonic()
    context.cancel()
    watched.wait_for_end(cancelled)
    wait_until(lambda: answered)
    assert "CANCELLED" in str(answered[0])


@pytest.mark.usefixtures("quiet_log")
def test_a_coroutine_on_a_stream_that_is_cancelled_is_cancelled(triton, name, watched):
    bind_floats(triton, name, watched.coroutine)
    with stream_to(triton) as stream:
        stream.send(name, 1)
        wait_until(lambda: watched.entered)

        cancelled = time.monotonic()
        stream.cancel()
        watched.wait_for_end(cancelled)


TIMEOUT_US = 200_000


@pytest.mark.usefixtures("quiet_log")
@pytest.mark.parametrize("kind", STREAMS)
def test_a_generator_is_closed_once_the_requests_timeout_has_passed(triton, name, watched, kind):
    bind_stream(triton, name, getattr(watched, kind))
    with stream_to(triton) as stream:
        sent = time.monotonic()
        stream.send(name, 1, timeout=TIMEOUT_US)
        *before, last = stream.replies()

        watched.wait_for_end(sent + TIMEOUT_US / 1e6)
        assert before[0].y == 0
        assert last.error == f"model '{name}': the request's timeout has passed"
        assert TIMEOUT_US / 1e6 < last.at - sent < TIMEOUT_US / 1e6 + NOTICED_S


@pytest.mark.usefixtures("quiet_log")
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_coroutine_is_cancelled_once_the_requests_timeout_has_passed(triton, name, watched, protocol):
    bind_floats(triton, name, watched.coroutine)
    sent = time.monotonic()
    if protocol == "http":
        _, answer = infer_json(triton, name, [json_floats([1])], parameters={"timeout": TIMEOUT_US})
        message = answer["error"]
    else:
        _, answered = start_unary(triton, name, timeout=TIMEOUT_US)
        wait_until(lambda: answered)
        message = answered[0].message()

    assert message == f"model '{name}': the request's timeout has passed"
    watched.wait_for_end(sent + TIMEOUT_US / 1e6)


def test_a_plain_function_is_told_once_the_requests_timeout_has_passed(triton, name, watched):
    bind_floats(triton, name, watched.plain)
    sent = time.monotonic()
    infer_json(triton, name, [json_floats([1])], parameters={"timeout": TIMEOUT_US})

    watched.wait_for_end(sent + TIMEOUT_US / 1e6)


@pytest.mark.parametrize("kind", ["coroutine", "waits", "generator", "plain"])
def test_a_request_is_cancelled_only_once_it_is(triton, name, kind):
    told = []

    def look(requests):
        told.append([request.is_cancelled() for request in requests])
        return answers(requests, 1)

    async def coroutine(requests):
        return look(requests)

    async def waits(requests):
        yield look(requests)

    def generator(requests):
        yield look(requests)

    infer_func = {"plain": look, "coroutine": coroutine, "waits": waits, "generator": generator}[kind]
    bind_stream(triton, name, infer_func)

    assert streamed(triton, name, 1)[0][0] == 1
    assert told == [[False]]


@pytest.mark.parametrize("is_async", [True, False])
def test_a_generator_may_ask_whether_a_request_of_its_batch_is_cancelled(triton, name, is_async):
    told = {}

    def look(requests):
        for request in requests:
            told[int(request["x"].item())] = request.is_cancelled()
        return answers(requests, 0)

    async def steps_async(requests):
        while len(requests) < 3 or not told.get(3):
            yield look(requests)
            await asyncio.sleep(STEP_S)

    def steps(requests):
        while len(requests) < 3 or not told.get(3):
            yield look(requests)
            time.sleep(STEP_S)

    bind_stream(triton, name, steps_async if is_async else steps, together(decoupled=True))
    with stream_to(triton) as first, stream_to(triton) as second, stream_to(triton) as third:
        for number, stream in enumerate((first, second, third), 1):
            stream.send(name, number)
        wait_until(lambda: len(told) == 3)
        third.cancel()

        assert first.replies()[-1].error is None
        assert second.replies()[-1].error is None
    assert told == {1: False, 2: False, 3: True}


@pytest.mark.usefixtures("quiet_log")
@pytest.mark.parametrize("kind", ["async generator", "generator", "coroutine"])
def test_the_others_of_a_batch_go_on_when_one_is_cancelled(triton, name, kind):
    entered, gate = [], threading.Event()

    def steps(requests):
        entered.append(len(requests))
        yield [Response(each) for each in answers(requests, 0)]
        assert gate.wait(30)
        for value in (1, 2, 3):
            yield answers(requests, value)

    async def steps_async(requests):
        entered.append(len(requests))
        yield answers(requests, 0)
        assert await asyncio.to_thread(gate.wait, 30)
        for value in (1, 2, 3):
            yield answers(requests, value)

    async def coroutine(requests):
        entered.append(len(requests))
        assert await asyncio.to_thread(gate.wait, 30)
        return answers(requests, 3)

    cancelled = []
    infer_func = {"async generator": steps_async, "generator": steps, "coroutine": coroutine}[kind]

    def watch(requests):
        cancelled.append(requests)
        return infer_func(requests)

    def watch_steps(requests):
        cancelled.append(requests)
        yield from infer_func(requests)

    async def watch_coroutine(requests):
        return await watch(requests)

    async def watch_steps_async(requests):
        async for step in watch(requests):
            yield step

    bind_stream(
        triton,
        name,
        {"async generator": watch_steps_async, "generator": watch_steps, "coroutine": watch_coroutine}[kind],
        together(decoupled=True),
    )
    with stream_to(triton) as leaves, stream_to(triton) as stays:
        leaves.send(name, 1)
        stays.send(name, 2)
        wait_until(lambda: entered)
        assert entered == [2]
        leaves.cancel()
        wait_until(lambda: any(request.is_cancelled() for request in cancelled[0]))
        gate.set()

        values = [reply.y for reply in stays.replies()]
    assert values == ([3] if kind == "coroutine" else [0, 1, 2, 3, None])


def test_a_batch_goes_on_until_all_its_requests_are_cancelled(triton, name, watched):
    bind_stream(triton, name, watched.yields, together(decoupled=True))
    streams = [Stream(triton).send(name, number) for number in range(3)]
    for stream in streams:
        assert stream.reply().y == 0
    assert watched.entered == 1

    for stream in streams[:2]:
        stream.close()
    for _ in range(round(NOTICED_S / STEP_S)):
        streams[2].reply()
    assert not watched.ended
    cancelled = time.monotonic()
    streams[2].close()
    watched.wait_for_end(cancelled)


def test_one_request_of_a_grpc_stream_may_time_out_while_others_go_on(triton, name, watched):
    bind_stream(triton, name, watched.yields, one_by_one(decoupled=True))
    with stream_to(triton) as stream:
        stream.send(name, 1, timeout=TIMEOUT_US)
        stream.send(name, 2, request_id="stays")
        wait_until(lambda: watched.ended)
        last = stream.replies()[-1]
        assert last.error == f"model '{name}': the request's timeout has passed"

        for _ in range(5):
            assert stream.reply().id == "stays"


def test_requests_that_are_cancelled_in_the_queue_are_never_served(triton, name):
    entered, gate = [], threading.Event()

    async def infer(requests):
        entered.append(number_of(requests))
        assert await asyncio.to_thread(gate.wait, 30)
        yield answers(requests, 1)

    bind_stream(triton, name, infer, one_by_one(decoupled=True, max_in_flight=1))
    with stream_to(triton) as first, stream_to(triton) as second, stream_to(triton) as third:
        first.send(name, 1)
        wait_until(lambda: entered == [1])
        second.send(name, 2)  # may be with the instance already
        third.send(name, 3)
        third.cancel()
        gate.set()
        first.replies()
        second.replies()
    assert streamed(triton, name, 4)[0] == [1, None]
    assert entered == [1, 2, 4] or entered == [1, 2, 3, 4]


def test_a_cleanup_that_awaits_runs_to_its_end(triton, name):
    steps = []

    async def infer(requests):
        try:
            yield answers(requests, 0)
            await asyncio.sleep(60)
        finally:
            steps.append("finally")
            await asyncio.sleep(0.05)
            steps.append("done")

    bind_stream(triton, name, infer)
    with stream_to(triton) as stream:
        stream.send(name, 1)
        assert stream.reply().y == 0

    wait_until(lambda: steps == ["finally", "done"])


def test_an_error_in_a_cleanup_is_a_warning(triton, name, caplog):
    async def infer(requests):
        try:
            yield answers(requests, 0)
            await asyncio.sleep(60)
        finally:
            raise ZeroDivisionError("while cleaning up")

    bind_stream(triton, name, infer)
    with stream_to(triton) as stream:
        stream.send(name, 1)
        assert stream.reply().y == 0

    (record,) = wait_until(lambda: unwanted_records(caplog))
    assert record.getMessage() == f"The inference callable of model '{name}' failed when it was to end."
    assert "while cleaning up" in str(record.exc_info[1])


def test_a_cancelled_coroutine_that_goes_on_is_left_alone_and_its_answer_dropped(triton, name, caplog):
    done = []

    async def stubborn(requests):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)
        done.append(True)
        return answers(requests, 1)

    bind_floats(triton, name, stubborn)
    infer_json(triton, name, [json_floats([1])], parameters={"timeout": TIMEOUT_US})

    wait_until(lambda: done)
    bind_floats(triton, f"{name}_other", lambda requests: requests)
    assert send_floats(triton, f"{name}_other", [1]) == [1]
    assert not unwanted_records(caplog)


def test_a_generator_that_does_not_mind_being_closed_is_told_of(triton, name, caplog):
    def stubborn(requests):
        while True:
            try:
                yield answers(requests, 0)
                time.sleep(STEP_S)
            except GeneratorExit:
                yield answers(requests, 1)
                return

    bind_stream(triton, name, stubborn)
    with stream_to(triton) as stream:
        stream.send(name, 1)
        assert stream.reply().y == 0

    (record,) = wait_until(lambda: unwanted_records(caplog))
    assert "generator ignored GeneratorExit" in str(record.exc_info[1])
    assert record.name.startswith("pytriton.proxy")


def test_the_server_goes_on_after_many_cancelled_requests(triton, name, watched, grpc_client):
    bind_stream(triton, name, watched.waits, one_by_one(decoupled=True))
    for _ in range(3):
        streams = [Stream(triton).send(name, number) for number in range(20)]
        for stream in streams:
            assert stream.reply().y == 0
        for stream in streams:
            stream.close()
    wait_until(lambda: sum(how == "finally" for how, _ in watched.ended) == 60)

    assert request_json(triton, "GET", f"/v2/models/{name}/ready")[0] == 200
    with stream_to(triton) as stream:
        assert stream.send(name, 1).reply().y == 0


def test_a_client_that_gives_up_waiting_cancels_its_coroutine(triton, name, watched):
    """The deadline of gRPC itself, which `client_timeout` sets."""
    bind_floats(triton, name, watched.coroutine)
    client = tritonclient.grpc.InferenceServerClient(f"{HOST}:{triton.config.grpc_port}")
    tensor = tritonclient.grpc.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
    request = Background(lambda: client.infer(name, [tensor], client_timeout=0.2))
    wait_until(lambda: watched.entered)
    request.finish()

    assert isinstance(request.error, InferenceServerException)
    watched.wait_for_end(request.ended)
