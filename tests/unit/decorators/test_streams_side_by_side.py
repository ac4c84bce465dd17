"""Generators of several requests, or groups of them, side by side."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars

import pytest
from generators import Requested, both_kinds, column, next_of, plain, requests_with_k, responses, run, steps_of
from hypothesis import given
from hypothesis import strategies as st

from pytriton.decorators import (
    batch,
    group_by_keys,
    group_by_values,
    sample,
)
from pytriton.exceptions import (
    PyTritonUnrecoverableError,
    PyTritonValidationError,
)
from pytriton.proxy.types import Request, Response

# Sockets are those of earlier tests in this process.
pytestmark = pytest.mark.filterwarnings("error", "ignore:unclosed <socket:ResourceWarning")


@both_kinds
def test_a_step_of_sample_has_an_item_per_request_and_marks_ended_ones(kind):
    @sample
    @kind
    def infer(x):
        for number in range(int(x.item())):
            yield {"y": x * 10 + number}

    got = steps_of(infer([Requested(1), Requested(3)]))

    assert got[0][0]["y"].item() == 10
    assert any(isinstance(step[0], Response) and step[0].final and not step[0] for step in got[1:])
    assert [step[1]["y"].item() for step in got if step[1] is not None] == [30, 31, 32]


def test_plain_generators_take_turns():
    order = []

    @sample
    def infer(x):
        for number in range(3):
            order.append((x.item(), number))
            yield [x + number]

    stream = infer([Requested(10), Requested(20)])

    assert [item[0].item() for item in next(stream)] == [10, 20]
    assert order == [(10, 0), (20, 0)]
    assert [item[0].item() for item in next(stream)] == [11, 21]
    assert order == [(10, 0), (20, 0), (10, 1), (20, 1)]
    stream.close()


ITEMS = st.one_of(st.integers(0, 99), st.none(), st.sampled_from(["final", "error item", "raise"]))


def expected_of(items):
    expected = []
    for item in items:
        if item == "final":
            return [*expected, -1]
        if item in ("error item", "raise"):
            return [*expected, ZeroDivisionError]
        if item is not None:
            expected.append(item)
    return expected


@both_kinds
@pytest.mark.parametrize("level", [sample, group_by_keys, group_by_values], ids=lambda level: level.__name__)
@given(st.lists(st.tuples(st.lists(ITEMS, max_size=5), st.integers(0, 3)), min_size=1, max_size=4))
def test_side_by_side_each_stream_keeps_its_order_and_loses_nothing(kind, level, scripts):
    if level is group_by_values:  # whose steps are over all rows of a group, and cannot be None or an exception
        skipped = (None, "error item")
        scripts = [([item for item in items if item not in skipped], pauses) for items, pauses in scripts]
    closed = []

    def script(number):
        try:
            for item in scripts[number][0]:
                if item == "raise":
                    raise ZeroDivisionError
                if item == "final":
                    yield Response({"y": column(-1)}, final=True)
                else:
                    yield item if item is None else ZeroDivisionError() if item == "error item" else [column(item)]
        finally:
            closed.append(number)

    def one_of(number):
        stream = script(number)
        if kind is plain:
            return stream

        async def pausing():
            with contextlib.closing(stream):
                for item in stream:
                    for _ in range(scripts[number][1]):
                        await asyncio.sleep(0)
                    yield item

        return pausing()

    count = len(scripts)
    if level is sample:
        stream = sample(lambda x: one_of(int(x.item())))([Requested(number) for number in range(count)])
    elif level is group_by_keys:
        infer = group_by_keys(sample(lambda **inputs: one_of(int(next(iter(inputs.values())).item()))))
        stream = infer([Request({f"x{number}": column(number)}) for number in range(count)])
    else:
        infer = batch(group_by_values("k")(lambda x, k: one_of(int(k.item()))))
        stream = infer(requests_with_k(*range(count)))

    if count == 1 and level is group_by_values:  # a single group passes straight through, failures too
        with contextlib.suppress(ZeroDivisionError):
            steps_of(stream)
        return
    assert responses(stream, count) == [expected_of(items) for items, _ in scripts]
    assert sorted(closed) == list(range(count))


def test_a_slow_stream_does_not_delay_the_others():
    async def main():
        held = asyncio.Event()

        @sample
        async def infer(x):
            if x.item() == 0:
                await held.wait()
            yield [x]
            yield [x + 10]

        stream = infer([Requested(0), Requested(1), Requested(2)])
        first, second, third = [await anext(stream) for _ in range(3)]
        held.set()
        rest = [step async for step in stream]
        return first, second, third, rest

    first, second, third, rest = run(main())

    assert first[0] is second[0] is third[0] is None
    assert [item[0].item() for item in first[1:]] == [1, 2]
    assert [item[0].item() for item in second[1:]] == [11, 12]
    assert all(item.final for item in third[1:])
    assert [step[0][0].item() for step in rest] == [0, 10]


def test_a_step_collects_all_available_items_and_no_stream_starves():
    @sample
    async def infer(x):
        for number in range(100 if x.item() else 3):
            for _ in range(0 if x.item() else 5):
                await asyncio.sleep(0)
            yield [x * 1000 + number]

    steps = steps_of(infer([Requested(1), Requested(0), Requested(2)]))

    assert all((step[0] is None) == (step[2] is None) for step in steps)
    slow_ended = next(number for number, step in enumerate(steps) if isinstance(step[1], Response))
    assert slow_ended < 40
    assert sum(step[0] is not None and not isinstance(step[0], Response) for step in steps) == 100


def test_an_idle_stream_does_not_block_the_others():
    async def main():
        rounds = 0

        @sample
        async def infer(x):
            nonlocal rounds
            while x.item() == 0:
                rounds += 1
                yield None
            yield [x]

        async with contextlib.aclosing(infer([Requested(0), Requested(1)])) as stream:
            return (await anext(stream))[1][0].item(), rounds

    assert run(main()) <= (1, 5)


def test_asynchronous_streams_are_at_most_one_step_ahead():
    async def main():
        made = [0, 0]

        @sample
        async def infer(x):
            while True:
                made[int(x.item())] += 1
                yield [x]

        async with contextlib.aclosing(infer([Requested(0), Requested(1)])) as stream:
            await asyncio.sleep(0)
            assert made == [0, 0]
            for taken in range(1, 4):
                await anext(stream)
                for _ in range(20):
                    await asyncio.sleep(0)
                assert made == [taken + 1] * 2

    run(main())


def test_an_asynchronous_generator_runs_in_one_task_from_start_to_end():
    tasks = {0: set(), 1: set()}
    ambient = contextvars.ContextVar("ambient")

    @sample
    async def infer(x):
        number = int(x.item())
        token = ambient.set(number)
        try:
            async with asyncio.timeout(60) if hasattr(asyncio, "timeout") else contextlib.nullcontext():
                for _ in range(2):
                    tasks[number].add(asyncio.current_task())
                    yield [x]
                    assert ambient.get() == number
        finally:
            tasks[number].add(asyncio.current_task())
            ambient.reset(token)

    assert responses(infer([Requested(0), Requested(1)]), 2) == [[0, 0], [1, 1]]
    assert [len(each) for each in tasks.values()] == [1, 1]


@both_kinds
def test_the_error_of_one_request_is_its_item_and_the_others_continue(kind):
    error = ZeroDivisionError("no")

    @sample
    @kind
    def infer(x):
        yield [x]
        if x.item() == 1:
            raise error
        yield [x + 10]

    steps = steps_of(infer([Requested(0), Requested(1), Requested(2)]))

    assert any(step[1] is error for step in steps)
    assert [step[2][0].item() for step in steps if isinstance(step[2], list)] == [2, 12]


@both_kinds
@pytest.mark.parametrize("level", [sample, group_by_keys], ids=["sample", "group_by_keys"])
def test_an_invalid_call_fails_its_own_request(kind, level):
    class Model:
        @(lambda function: group_by_keys(batch(function)) if level is group_by_keys else sample(function))
        @kind
        def infer(self, x):
            yield [x]

    class Hidden:
        __call__ = kind(lambda self, x: (yield [x]))

    requests = [Requested(0), Requested(1, k=column(1)), Requested(2)]
    assert responses(Model().infer(requests), 3) == [[0], [TypeError], [2]]
    assert responses(sample(Hidden())(requests), 3) == [[0], [TypeError], [2]]


def test_functions_fail_together():
    calls = []

    @sample
    def infer(x):
        calls.append(x.item())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        infer([Requested(0), Requested(1)])
    assert calls == [0]


def test_a_task_that_was_cancelled_elsewhere_is_an_error_of_its_request():
    @sample
    async def infer(x):
        yield [x]
        if x.item():
            raise asyncio.CancelledError

    assert responses(infer([Requested(0), Requested(1)]), 2) == [[0], [1, asyncio.CancelledError]]


@both_kinds
def test_an_unrecoverable_error_is_raised_even_if_others_end_simultaneously(kind):
    @sample
    @kind
    def infer(x):
        if x.item():
            raise PyTritonUnrecoverableError("broken")
        yield from ()

    with pytest.raises(PyTritonUnrecoverableError):
        steps_of(infer([Requested(0), Requested(1)]))


@both_kinds
@pytest.mark.parametrize("error", [PyTritonUnrecoverableError("broken"), SystemExit(3)], ids=["unrecoverable", "exit"])
def test_an_unrecoverable_error_ends_all_streams(kind, error):
    closed = []

    @sample
    @kind
    def infer(x):
        try:
            yield [x]
            if x.item() == 1:
                raise error
            while True:
                yield [x]
        finally:
            closed.append(x.item())

    async def main():
        stream = infer([Requested(0), Requested(1), Requested(2)])
        with pytest.raises(type(error)) as raised:
            while True:
                await next_of(stream)
        assert raised.value is error
        assert sorted(closed) == [0, 1, 2]

    run(main())


@both_kinds
def test_mixing_generators_and_other_results_is_refused(kind):
    @sample
    def infer(x):
        return kind(lambda: (yield [x]))() if x.item() else [x]

    with pytest.raises(
        PyTritonValidationError, match=r"of different kinds .*, (async_)?generator and list: return a gen"
    ):
        infer([Requested(0), Requested(1)])


@both_kinds
def test_a_final_response_or_an_exception_closes_the_generator_of_its_request(kind):
    closed, resumed = [], []

    @sample
    @kind
    def infer(x):
        if x.item() == 2:
            yield [x]
            yield [x]
            yield [x + len(closed)]
            return
        try:
            yield Response({"y": x}, final=True) if x.item() else ValueError("no")
            resumed.append(x.item())
        finally:
            closed.append(x.item())

    assert responses(infer([Requested(0), Requested(1), Requested(2)]), 3) == [[ValueError], [1], [2, 2, 4]]
    assert resumed == []
