"""Requests that are cancelled while others of their batch continue."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from serving import wait_until
from streaming import Stream, bind_stream, number_of, one_by_one, responses, stream_to, streamed, together
from watching import NOTICED_S, STEP_S, TIMEOUT_US

from pytriton.proxy.types import Response


@pytest.mark.parametrize("is_async", [True, False])
def test_a_generator_can_check_whether_a_request_of_its_batch_is_cancelled(triton, name, is_async):
    seen_cancelled = {}

    def look(requests):
        for request in requests:
            seen_cancelled[int(request["x"].item())] = request.is_cancelled()
        return responses(requests, 0)

    async def steps_async(requests):
        while len(requests) < 3 or not seen_cancelled.get(3):
            yield look(requests)
            await asyncio.sleep(STEP_S)

    def steps(requests):
        while len(requests) < 3 or not seen_cancelled.get(3):
            yield look(requests)
            time.sleep(STEP_S)

    bind_stream(triton, name, steps_async if is_async else steps, together(decoupled=True))
    with stream_to(triton) as first, stream_to(triton) as second, stream_to(triton) as third:
        for number, stream in enumerate((first, second, third), 1):
            stream.send(name, number)
        wait_until(lambda: len(seen_cancelled) == 3)
        third.cancel()

        assert first.replies()[-1].error is None
        assert second.replies()[-1].error is None
    assert seen_cancelled == {1: False, 2: False, 3: True}


@pytest.mark.usefixtures("quiet_log")
@pytest.mark.parametrize("kind", ["async generator", "generator", "coroutine"])
def test_cancelling_one_request_of_a_batch_does_not_affect_the_others(triton, name, kind):
    entered, gate = [], threading.Event()

    def steps(requests):
        entered.append(len(requests))
        yield [Response(each) for each in responses(requests, 0)]
        assert gate.wait(30)
        for value in (1, 2, 3):
            yield responses(requests, value)

    async def steps_async(requests):
        entered.append(len(requests))
        yield responses(requests, 0)
        assert await asyncio.to_thread(gate.wait, 30)
        for value in (1, 2, 3):
            yield responses(requests, value)

    async def coroutine(requests):
        entered.append(len(requests))
        assert await asyncio.to_thread(gate.wait, 30)
        return responses(requests, 3)

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


def test_a_batch_continues_until_all_its_requests_are_cancelled(triton, name, watched):
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


def test_one_request_of_a_grpc_stream_may_time_out_while_others_continue(triton, name, watched):
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
        yield responses(requests, 1)

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
