"""Streams side by side: of the requests of a batch, of one instance, and of many."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from serving import at_once, metrics_of, wait_until
from streaming import (
    COUNTERS,
    Gates,
    bind_stream,
    by_id,
    count,
    number_of,
    one_by_one,
    responses,
    stream_to,
    streamed,
    together,
    values_of,
)

from pytriton.proxy.types import Response


class Countdown:
    """Streams a batch: each request gets as many responses as it asks for, and ends after its own.

    Attributes:
        sizes: Requests of each batch.
    """

    def __init__(self, last="data"):
        self.sizes = []
        self._last = last

    def _item(self, request, step):
        wanted = int(request["x"].item())
        data = {"y": np.full_like(request["x"], step)}
        if step < wanted - 1:
            return data
        if step == wanted - 1:
            return Response(data, final=self._last == "data")
        if step == wanted:
            return {"data": None, "end": Response({}, final=True), "error": ValueError(f"{wanted}")}[self._last]
        return None

    def generator(self, requests):
        self.sizes.append(len(requests))
        for step in range(int(max(request["x"].item() for request in requests)) + 1):
            yield [self._item(request, step) for request in requests]

    async def async_generator(self, requests):
        for step in self.generator(requests):
            await asyncio.sleep(0)
            yield step


@pytest.mark.parametrize("kind", COUNTERS)
@pytest.mark.parametrize("last", ["data", "end"])
def test_requests_of_one_batch_are_streamed_together_and_each_ends_by_itself(triton, name, kind, last):
    countdown = Countdown(last)
    bind_stream(triton, name, getattr(countdown, kind), together(decoupled=True))
    with stream_to(triton) as stream:
        for number in (1, 5, 3):
            stream.send(name, number, request_id=f"{number}")
        replies = stream.replies(3)

    assert countdown.sizes == [3]
    end = [None] if last == "end" else []
    assert by_id(replies) == {f"{number}": [*range(number), *end] for number in (1, 3, 5)}
    assert [reply.id for reply in replies if reply.final] == ["1", "3", "5"]
    assert [reply.y for reply in replies if reply.y is not None] == [0, 0, 0, 1, 1, 2, 2, 3, 4]


@pytest.mark.parametrize("kind", COUNTERS)
def test_an_exception_in_a_step_ends_its_request_alone(triton, name, kind):
    countdown = Countdown("error")
    bind_stream(triton, name, getattr(countdown, kind), together(decoupled=True))

    def send(number):
        return streamed(triton, name, number)[0]

    assert at_once(3, lambda index: send(index + 1)) == [
        [*range(number), f"model '{name}': ValueError: {number}"] for number in (1, 2, 3)
    ]
    assert max(countdown.sizes) > 1


@pytest.mark.parametrize("kind", COUNTERS)
def test_an_error_in_mid_stream_reaches_those_of_its_batch_that_have_not_ended(triton, name, kind):
    sizes = []

    def fail(requests):
        sizes.append(len(requests))
        yield [
            Response(each, final=request["x"].item() == 1)
            for request, each in zip(requests, responses(requests, 1), strict=True)
        ]
        raise ZeroDivisionError("the sky fell")

    async def fail_async(requests):
        for step in fail(requests):
            yield step

    bind_stream(triton, name, {"generator": fail, "async_generator": fail_async}[kind], together(decoupled=True))
    with stream_to(triton) as one, stream_to(triton) as other:
        one.send(name, 1)
        other.send(name, 2)

        assert values_of(one.replies()) == [1]
        assert values_of(other.replies()) == [1, f"model '{name}': ZeroDivisionError: the sky fell"]
    assert sizes == [2]


def test_a_step_may_have_no_responses(triton, name):
    async def rarely(requests):
        yield [None]
        yield responses(requests, 1)
        yield [None]

    bind_stream(triton, name, rarely)

    assert streamed(triton, name, 1) == ([1, None], [False, True])


def test_an_async_instance_has_many_streams_in_flight(triton, name):
    gates = Gates()

    async def infer(requests):
        yield responses(requests, 1)
        await gates.wait(number_of(requests))
        yield responses(requests, 2)

    bind_stream(triton, name, infer, one_by_one(decoupled=True))
    with stream_to(triton) as stream:
        for number in range(256):
            stream.send(name, number, request_id=f"{number}")
        wait_until(lambda: len(gates.entered) == 256)
        assert [stream.reply().y for _ in range(256)] == [1] * 256
        gates.open(*range(256))

        assert list(by_id(stream.replies(256)).values()) == [[2, None]] * 256


def test_a_stream_beyond_the_limit_waits_until_another_ends(triton, name):
    gates = Gates()

    async def infer(requests):
        await gates.wait(number_of(requests))
        yield responses(requests, 1)

    bind_stream(triton, name, infer, one_by_one(decoupled=True, max_in_flight=2))
    with stream_to(triton) as stream:
        for number in range(4):
            stream.send(name, number, request_id=f"{number}")
        wait_until(lambda: len(gates.entered) == 2)
        wait_until(lambda: metrics_of(triton, name)["nv_inference_pending_request_count"] == 2)
        assert len(gates.entered) == 2

        gates.open(gates.entered[1])
        assert {reply.id for reply in stream.replies()} == {f"{gates.entered[1]}"}
        wait_until(lambda: len(gates.entered) == 3)
        gates.open(*range(4))
        assert len(by_id(stream.replies(3))) == 3


def test_a_slow_generator_does_not_stop_its_neighbors(triton, name):
    gate = threading.Event()

    def infer(requests):
        if number_of(requests) < 0:
            yield responses(requests, -1)
            assert gate.wait(30)
        yield from count(requests)

    bind_stream(triton, name, infer, one_by_one(decoupled=True))
    with stream_to(triton) as slow:
        slow.send(name, -1)
        assert slow.reply().y == -1

        for _ in range(3):
            assert streamed(triton, name, 3)[0] == [0, 1, 2, None]
        assert not slow.has_reply()
        gate.set()
        assert slow.reply().final


def test_32_generators_run_at_the_same_time_by_default(triton, name):
    entered, gate = [], threading.Event()

    def infer(requests):
        entered.append(threading.get_ident())
        assert gate.wait(30)
        yield responses(requests, 1)

    bind_stream(triton, name, infer, one_by_one(decoupled=True))
    with stream_to(triton) as stream:
        for _ in range(34):
            stream.send(name, 1)
        wait_until(lambda: len(entered) == 32)
        wait_until(lambda: metrics_of(triton, name)["nv_inference_pending_request_count"] == 2)
        assert len(entered) == len(set(entered)) == 32
        gate.set()

        assert values_of(stream.replies(34)).count(1) == 34


def test_the_number_of_threads_of_generators_is_that_of_the_model(triton, name):
    entered, gate = [], threading.Semaphore(0)

    def infer(requests):
        entered.append(threading.get_ident())
        assert gate.acquire(timeout=30)
        yield responses(requests, 1)

    bind_stream(triton, name, infer, one_by_one(decoupled=True, max_in_flight=2))
    with stream_to(triton) as stream:
        for _ in range(4):
            stream.send(name, 1)
        wait_until(lambda: metrics_of(triton, name)["nv_inference_pending_request_count"] == 2)
        wait_until(lambda: len(entered) == 2)
        gate.release()
        assert values_of(stream.replies()) == [1, None]
        wait_until(lambda: len(entered) == 3)
        gate.release(3)
        stream.replies(3)
    assert len(set(entered)) == 2
