"""Cancelled requests: their callables are notified within a second, and other requests are not affected."""

from __future__ import annotations

import asyncio
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
from streaming import EventStream, Stream, bind_stream, one_by_one, responses, stream_to, streamed
from watching import FOREVER, NOTICED_S, STEP_S, STREAMS, TIMEOUT_US, start_unary, unwanted_records


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
def test_an_http_client_that_abandons_an_event_stream_closes_the_generator(triton, name, watched, kind):
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


def test_an_http_disconnection_is_detected_at_the_first_event(triton, name):
    entered, gate = threading.Event(), threading.Event()
    closed = []

    async def infer(requests):
        entered.set()
        assert await asyncio.to_thread(gate.wait, 30)
        try:
            for value in range(FOREVER):
                yield responses(requests, value)
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
def test_a_killed_client_leaves_no_generator(triton, name, watched, kind, protocol):
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
    context, outcomes = start_unary(triton, name)
    wait_until(lambda: watched.entered)

    cancelled = time.monotonic()
    context.cancel()
    watched.wait_for_end(cancelled)
    wait_until(lambda: outcomes)
    assert "CANCELLED" in str(outcomes[0])


@pytest.mark.usefixtures("quiet_log")
def test_a_coroutine_on_a_stream_that_is_cancelled_is_cancelled(triton, name, watched):
    bind_floats(triton, name, watched.coroutine)
    with stream_to(triton) as stream:
        stream.send(name, 1)
        wait_until(lambda: watched.entered)

        cancelled = time.monotonic()
        stream.cancel()
        watched.wait_for_end(cancelled)


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
        _, response = infer_json(triton, name, [json_floats([1])], parameters={"timeout": TIMEOUT_US})
        message = response["error"]
    else:
        _, outcomes = start_unary(triton, name, timeout=TIMEOUT_US)
        wait_until(lambda: outcomes)
        message = outcomes[0].message()

    assert message == f"model '{name}': the request's timeout has passed"
    watched.wait_for_end(sent + TIMEOUT_US / 1e6)


def test_a_plain_function_sees_that_the_requests_timeout_has_passed(triton, name, watched):
    bind_floats(triton, name, watched.plain)
    sent = time.monotonic()
    infer_json(triton, name, [json_floats([1])], parameters={"timeout": TIMEOUT_US})

    watched.wait_for_end(sent + TIMEOUT_US / 1e6)


@pytest.mark.parametrize("kind", ["coroutine", "waits", "generator", "plain"])
def test_a_request_is_reported_as_cancelled_only_after_its_cancellation(triton, name, kind):
    reported = []

    def look(requests):
        reported.append([request.is_cancelled() for request in requests])
        return responses(requests, 1)

    async def coroutine(requests):
        return look(requests)

    async def waits(requests):
        yield look(requests)

    def generator(requests):
        yield look(requests)

    infer_func = {"plain": look, "coroutine": coroutine, "waits": waits, "generator": generator}[kind]
    bind_stream(triton, name, infer_func)

    assert streamed(triton, name, 1)[0][0] == 1
    assert reported == [[False]]


def test_a_cleanup_that_awaits_runs_to_its_end(triton, name):
    steps = []

    async def infer(requests):
        try:
            yield responses(requests, 0)
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
            yield responses(requests, 0)
            await asyncio.sleep(60)
        finally:
            raise ZeroDivisionError("while cleaning up")

    bind_stream(triton, name, infer)
    with stream_to(triton) as stream:
        stream.send(name, 1)
        assert stream.reply().y == 0

    (record,) = wait_until(lambda: unwanted_records(caplog))
    assert record.getMessage() == f"The inference callable of model '{name}' failed while being stopped."
    assert "while cleaning up" in str(record.exc_info[1])


def test_the_response_of_a_coroutine_that_ignores_cancellation_is_dropped(triton, name, caplog):
    done = []

    async def stubborn(requests):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)
        done.append(True)
        return responses(requests, 1)

    bind_floats(triton, name, stubborn)
    infer_json(triton, name, [json_floats([1])], parameters={"timeout": TIMEOUT_US})

    wait_until(lambda: done)
    bind_floats(triton, f"{name}_other", lambda requests: requests)
    assert send_floats(triton, f"{name}_other", [1]) == [1]
    assert not unwanted_records(caplog)


def test_a_generator_that_ignores_being_closed_is_warned_about(triton, name, caplog):
    def stubborn(requests):
        while True:
            try:
                yield responses(requests, 0)
                time.sleep(STEP_S)
            except GeneratorExit:
                yield responses(requests, 1)
                return

    bind_stream(triton, name, stubborn)
    with stream_to(triton) as stream:
        stream.send(name, 1)
        assert stream.reply().y == 0

    (record,) = wait_until(lambda: unwanted_records(caplog))
    assert "generator ignored GeneratorExit" in str(record.exc_info[1])
    assert record.name.startswith("pytriton.proxy")


def test_the_server_still_works_after_many_cancelled_requests(triton, name, watched, grpc_client):
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


def test_a_client_that_times_out_cancels_its_coroutine(triton, name, watched):
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
