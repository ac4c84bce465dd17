"""Streams and coroutines whose model is rebound."""

from __future__ import annotations

import asyncio
import threading

import pytest
from running_streams import threads_of
from serving import Background, bind_floats, running_triton, send_floats, wait_until
from streaming import Gates, bind_stream, number_of, one_by_one, responses, row, stream_to, streamed


@pytest.mark.parametrize("is_async", [True, False])
def test_a_stream_is_completed_when_its_model_is_rebound(triton, name, is_async):
    gate = threading.Event()

    def counts_from(start):
        def infer(requests):
            yield responses(requests, start)
            assert gate.wait(30)
            yield responses(requests, start + 1)

        async def infer_async(requests):
            yield responses(requests, start)
            assert await asyncio.to_thread(gate.wait, 30)
            yield responses(requests, start + 1)

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


def test_a_coroutine_in_flight_returns_when_its_model_is_rebound(triton, name, grpc_client):
    gates = Gates()

    async def old(requests):
        await gates.wait(number_of(requests))
        return responses(requests, 1)

    async def new(requests):
        return responses(requests, 2)

    bind_floats(triton, name, old)
    request = Background(lambda: grpc_client.infer(name, {"x": row(1)})["y"].item())
    wait_until(lambda: gates.entered)
    bind_floats(triton, name, new)

    assert send_floats(triton, name, [1]) == [2]
    gates.open(1)
    assert request.finish().result == 1


def test_a_stream_of_one_kind_may_replace_another(triton, name):
    async def stream(requests):
        yield responses(requests, 1)
        yield responses(requests, 2)

    def generator(requests):
        yield responses(requests, 3)

    bind_stream(triton, name, stream)
    assert streamed(triton, name, 1) == ([1, 2, None], [False, False, True])
    bind_stream(triton, name, generator)
    assert streamed(triton, name, 1) == ([3, None], [False, True])
    bind_stream(triton, name, lambda requests: responses(requests, 4))
    assert streamed(triton, name, 1) == ([4], [True])
    bind_floats(triton, name, lambda requests: responses(requests, 5))
    assert send_floats(triton, name, [1]) == [5]
    bind_stream(triton, name, stream)
    assert streamed(triton, name, 1) == ([1, 2, None], [False, False, True])


def test_repeated_rebinding_leaves_no_thread(name):
    async def stream(requests):
        yield responses(requests, 1)

    def generator(requests):
        yield responses(requests, 1)

    with running_triton() as triton:
        triton.run()
        for _ in range(5):
            for infer_func in (stream, generator):
                bind_stream(triton, name, infer_func)
                assert streamed(triton, name, 1)[0] == [1, None]
    # Not before: Triton may keep a replaced model for as long as it keeps what it remembers of a stream.
    wait_until(lambda: not threads_of(name))
