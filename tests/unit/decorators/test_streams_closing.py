"""Generators under decorators that end early: closed, cancelled or dropped."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading

import numpy as np
import pytest
from generators import (
    INPUTS,
    Requested,
    both_kinds,
    close,
    column,
    next_of,
    requests_with_k,
    run,
    turns,
    waiting,
)

from pytriton.decorators import (
    batch,
    fill_optionals,
    first_value,
    group_by_keys,
    group_by_values,
    pad_batch,
    sample,
    triton_context,
)
from pytriton.proxy.types import Response

# Sockets are those of earlier tests in this process.
pytestmark = pytest.mark.filterwarnings("error", "ignore:unclosed <socket:ResourceWarning")


STACKS = {
    "batch": batch,
    "sample": sample,
    "fill_optionals": lambda infer: fill_optionals(k=np.ones(1))(batch(infer)),
    "group_by_keys": lambda infer: group_by_keys(batch(infer)),
    "group_by_values": lambda infer: fill_optionals(k=np.ones(1))(batch(group_by_values("k")(infer))),
    "pad_batch": lambda infer: batch(pad_batch(infer)),
    "first_value": lambda infer: batch(first_value("x", strict=False)(infer)),
    "triton_context": lambda infer: batch(triton_context(infer)),
}


@both_kinds
@pytest.mark.parametrize("name", STACKS)
def test_closing_runs_every_finally(model, kind, name):
    model(INPUTS, preferred=[4], max_batch_size=8)
    opened, closed = [], []

    @kind
    def infer(x, k=None, triton_context=None):
        opened.append(x)
        try:
            while True:
                yield [x if isinstance(x, np.ndarray) else column(0, 0)]
        finally:
            closed.append(x)

    decorated = STACKS[name](infer)
    apart = name in ("sample", "fill_optionals", "group_by_keys", "group_by_values")
    requests = [Requested(0), Requested(1, k=column(2)) if apart else Requested(1)]

    async def main():
        stream = decorated(requests)
        await next_of(stream)
        await next_of(stream)
        assert len(opened) == (2 if name in ("sample", "group_by_keys", "group_by_values") else 1)
        await close(stream)
        assert len(closed) == len(opened)
        await close(decorated(requests))  # one that was never started

    run(main())


@pytest.mark.parametrize("when", ["while waiting", "between steps"])
def test_cancelling_the_consumer_closes_every_generator(when):
    closed = []

    async def main():
        stream = waiting(closed, turns)([Requested(0), Requested(1)])
        requested = asyncio.Event()

        async def send_request():
            async with contextlib.aclosing(stream):
                await anext(stream)
                requested.set()
                if when == "while waiting":
                    await anext(stream)
                await asyncio.Event().wait()

        task = asyncio.create_task(send_request())
        await requested.wait()
        await turns()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sorted(closed) == [0, 1]

    run(main())


def test_a_second_cancellation_ends_a_cleanup_that_hangs():
    closed, cleaning = [], []

    async def hang():
        cleaning.append(True)
        await asyncio.Event().wait()

    async def main():
        stream = waiting(closed, hang)([Requested(0), Requested(1)])
        await anext(stream)
        task = asyncio.create_task(stream.aclose())
        while len(cleaning) < 2:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    assert closed == []


def test_a_dropped_stream_is_closed_by_the_event_loop():
    closed = []

    async def main():
        stream = infer([Requested(0)])
        await anext(stream)
        streams = waiting(closed)([Requested(1), Requested(2)])
        await anext(streams)
        del stream, streams
        gc.collect(1)
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)

    @batch
    async def infer(x):
        try:
            yield [x]
        finally:
            closed.append(x.item())

    run(main())
    assert sorted(closed) == [0, 1, 2]


def test_streams_that_are_open_when_the_event_loop_ends_are_closed():
    closed = []
    kept = []

    async def main():
        kept.append(waiting(closed)([Requested(0), Requested(1)]))
        await anext(kept[0])

    asyncio.run(main())
    assert sorted(closed) == [0, 1]


@both_kinds
def test_a_failure_in_closing_is_logged_and_the_others_are_still_closed(kind, caplog):
    closed = []

    @sample
    @kind
    def infer(x):
        try:
            while True:
                yield [x]
        finally:
            closed.append(x.item())
            raise ZeroDivisionError("while cleaning up")

    async def main():
        stream = infer([Requested(0), Requested(1)])
        await next_of(stream)
        await close(stream)

    with caplog.at_level(logging.ERROR):
        run(main())
    assert sorted(closed) == [0, 1]
    assert caplog.text.count("ZeroDivisionError: while cleaning up") == 2


def test_a_plain_generator_of_a_cancelled_request_is_closed_at_its_next_step():
    closed = []

    @sample
    def infer(x):
        try:
            while True:
                yield [x]
        finally:
            closed.append(x.item())

    requests = [Requested(0), Requested(1), Requested(2)]
    requests[2].cancelled = True
    stream = infer(requests)

    first = next(stream)
    assert (closed, first[1][0].item(), first[2].final) == ([], 1, True)
    requests[0].cancelled = True
    step = next(stream)
    assert (closed, step[0].final, step[1][0].item(), step[2]) == ([0], True, 1, None)
    requests[1].cancelled = True
    assert next(stream, None) is None
    assert closed == [0, 1]


@pytest.mark.parametrize("stage", ["before", "while it works", "while its item waits"])
def test_an_asynchronous_generator_of_a_cancelled_request_ends_at_once(stage):
    events = []

    @sample
    async def infer(x):
        number = int(x.item())
        events.append(f"start {number}")
        try:
            yield [x]
            if stage == "while its item waits" or number == 1:
                yield [x]
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            events.append(f"end {number}")

    async def main():
        requests = [Requested(0), Requested(1)]
        if stage == "before":
            requests[0].cancel()
        async with contextlib.aclosing(infer(requests)) as stream:
            await anext(stream)
            for _ in range(5):
                await asyncio.sleep(0)
            requests[0].cancel()
            requests[0].cancel()
            for _ in range(5):
                await asyncio.sleep(0)
            if stage == "before":
                assert events == ["start 1"]
            else:
                assert events == ["start 0", "start 1", "end 0"]
                step = await anext(stream)
                assert step[0].final
                assert not step[0]
                assert step[1][0].item() == 1
        assert all(each.callbacks == [] for each in requests)

    run(main())
    assert events[-1] == "end 1"


def test_a_request_may_be_cancelled_in_another_thread():
    closed = []

    async def main():
        requests = [Requested(0)]
        async with contextlib.aclosing(waiting(closed)(requests)) as stream:
            await anext(stream)
            threading.Timer(0.02, requests[0].cancel).start()  # while the event loop has nothing to do
            with pytest.raises(StopAsyncIteration):
                await asyncio.wait_for(anext(stream), 20)
            assert closed == [0]
        requests[0].cancel()

    run(main())


def test_a_generator_that_cleans_up_is_not_cancelled_again():
    finished = []

    @sample
    async def infer(x):
        try:
            yield Response({"y": x}, final=True)
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            finished.append(x.item())

    async def main():
        requests = [Requested(0)]
        stream = infer(requests)
        await anext(stream)
        await asyncio.sleep(0)
        requests[0].cancel()
        assert [step async for step in stream] == []

    run(main())
    assert finished == [0]


def test_closing_does_not_interrupt_a_cleanup():
    finished = []

    @sample
    async def infer(x):
        try:
            yield Response({"y": x}, final=x.item() == 0)
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            finished.append(x.item())

    async def main():
        async with contextlib.aclosing(infer([Requested(0), Requested(1)])) as stream:
            await anext(stream)
            await asyncio.sleep(0)

    run(main())
    assert sorted(finished) == [0, 1]


def test_a_failure_after_the_cancellation_is_logged(caplog):
    async def fail():
        raise ZeroDivisionError("while cleaning up")

    async def main():
        requests = [Requested(0)]
        stream = waiting([], fail)(requests)
        await anext(stream)
        await turns()
        requests[0].cancel()
        assert [step async for step in stream] == []

    with caplog.at_level(logging.ERROR):
        run(main())
    assert caplog.text.count("ZeroDivisionError: while cleaning up") == 1


def test_a_generator_that_ignores_its_cancellation_is_closed():
    closed = []

    @sample
    async def infer(x):
        try:
            yield [x]
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            yield [x]
            raise AssertionError("nobody asks for more")
        finally:
            closed.append(x.item())

    async def main():
        requests = [Requested(0)]
        stream = infer(requests)
        await anext(stream)
        requests[0].cancel()
        assert [step async for step in stream] == []

    run(main())
    assert closed == [0]


@both_kinds
@pytest.mark.parametrize("level", [group_by_keys, group_by_values], ids=lambda level: level.__name__)
def test_the_generator_of_a_group_is_closed_when_all_its_requests_are_cancelled(kind, level):
    closed = []

    @kind
    def infer(x, k=None):
        try:
            while True:
                yield [x]
        finally:
            closed.append(x[:, 0].tolist())

    if level is group_by_keys:
        requests = [Requested(0), Requested(1, k=column(1)), Requested(2)]
        infer = group_by_keys(batch(infer))
    else:
        requests = requests_with_k(1, 2, 1)
        infer = batch(group_by_values("k")(infer))

    async def main():
        stream = infer(requests)
        await next_of(stream)
        requests[0].cancel()
        for _ in range(5):
            await next_of(stream)
        assert closed == []
        requests[2].cancel()
        for _ in range(5):
            await next_of(stream)
        assert closed == [[0, 2]]
        await close(stream)

    run(main())
