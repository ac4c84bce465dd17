"""Generators and asynchronous generators under decorators."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import inspect
import itertools

import numpy as np
import pytest
import wrapt
from generators import (
    DECORATORS,
    INPUTS,
    Requested,
    asynchronous,
    both_kinds,
    close,
    column,
    next_of,
    plain,
    responses,
    run,
    steps_of,
    value_of,
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
from pytriton.exceptions import (
    PyTritonValidationError,
)
from pytriton.proxy.context import CALL_FRAME
from pytriton.proxy.tensors.stacked_outputs import StackedOutputs
from pytriton.proxy.types import Request, Response

# Sockets are those of earlier tests in this process.
pytestmark = pytest.mark.filterwarnings("error", "ignore:unclosed <socket:ResourceWarning")


def first_of(outputs):
    return next(iter(outputs.values() if isinstance(outputs, dict) else outputs))


@both_kinds
@pytest.mark.parametrize("name", DECORATORS)
def test_decorated_generator_functions_stay_generator_functions(name, kind):
    def generate(*args):
        yield args

    class Model:
        method = DECORATORS[name](kind(generate))
        static = staticmethod(DECORATORS[name](kind(generate)))

    is_kind = inspect.isgeneratorfunction if kind is plain else inspect.isasyncgenfunction
    decorated = [DECORATORS[name](kind(generate)), Model.method, Model().method, Model.static]
    assert all(map(is_kind, decorated))
    assert is_kind(functools.partial(decorated[0]))


@both_kinds
@pytest.mark.parametrize("decorator", [batch, sample], ids=["batch", "sample"])
def test_methods_partials_and_objects_stream(decorator, kind):
    def generate(self, x, factor=2):
        for number in range(2):
            yield [x * factor + number]

    class Model:
        method = decorator(kind(generate))
        __call__ = decorator(kind(generate))

    class Undecorated:
        __call__ = kind(generate)

    for infer in (
        Model().method,
        Model(),
        decorator(Undecorated()),
        decorator(functools.partial(kind(generate), None)),
        functools.partial(Model().method),
    ):
        assert responses(infer([Requested(1), Requested(2)]), 2) == [[2, 3], [4, 5]]


@both_kinds
def test_a_step_of_batch_is_the_outputs_of_the_whole_batch(kind):
    @batch
    @kind
    def infer(x):
        yield {"y": x}
        yield [x * 2]

    requests = [Requested(1), {"x": column(2, 3)}]
    steps = steps_of(infer(requests))

    assert [type(step) for step in steps] == [StackedOutputs] * 2
    assert [[value_of(each) for each in map(first_of, step)] for step in steps] == [[1, [[2], [3]]], [2, [[4], [6]]]]


@both_kinds
def test_batch_checks_every_step_and_closes_the_generator(kind):
    closed = []

    @batch
    @kind
    def infer(x):
        try:
            yield {"y": x}
            yield {"y": x[:0]}
        finally:
            closed.append(True)

    stream = infer([Requested(1)])

    async def main():
        await next_of(stream)
        with pytest.raises(PyTritonValidationError, match="'y' has 0 rows, but the batch has 1"):
            await next_of(stream)
        assert closed == [True]

    run(main())


@both_kinds
def test_a_final_response_over_the_batch_ends_all_requests(kind):
    @batch
    @kind
    def infer(x):
        yield Response({"y": x}, final=True)

    ((one, two),) = steps_of(infer([Requested(1), Requested(2)]))

    assert (one["y"].item(), two["y"].item(), one.final, two.final) == (1, 2, True, True)


@both_kinds
def test_all_decorators_stream(model, kind):
    model(INPUTS, max_batch_size=8)
    seen = []

    @fill_optionals(k=np.array([2.0]))
    @group_by_keys
    @batch
    @group_by_values("k")
    @pad_batch
    @first_value("k")
    @triton_context
    @kind
    def infer(x, k, triton_context):
        for power in (1, 2):
            seen.append((k, len(x), [each["number"] for each in triton_context.parameters]))
            yield {"y": x * k**power}

    got = responses(infer([Requested(1), Requested(2, k=column(3)), Requested(3)]), 3)

    assert got == [[2, 4], [6, 18], [6, 12]]
    assert sorted(seen) == [(2, 8, [1, 3])] * 2 + [(3, 8, [2])] * 2


@wrapt.decorator
def own_wrapt(wrapped, instance, args, kwargs):
    return wrapped(*args, **kwargs)


def own_wraps(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def own_generator(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        yield from function(*args, **kwargs)

    return wrapper


def own_async_generator(function):
    @functools.wraps(function)
    async def wrapper(*args, **kwargs):
        async with contextlib.aclosing(function(*args, **kwargs)) as stream:
            async for step in stream:
                yield step

    return wrapper


def own_iterator(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return itertools.chain(function(*args, **kwargs))

    return wrapper


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        *itertools.product([plain, asynchronous], [own_wrapt, own_wraps]),
        (plain, own_generator),
        (plain, own_iterator),
        (asynchronous, own_async_generator),
    ],
)
@pytest.mark.parametrize("unpack", [batch, sample], ids=["batch", "sample"])
def test_custom_decorators_may_stand_between(model, kind, own, unpack):
    model(INPUTS)

    @own
    @group_by_keys
    @own
    @unpack
    @own
    @triton_context
    @kind
    def infer(x, triton_context, k=None):
        for number in range(2):
            yield [column(*(each["number"] for each in triton_context.row_parameters)) + (k is None) * 10 + number]

    assert responses(infer([Requested(1), Requested(2, k=column(1)), Requested(3)]), 3) == [[11, 12], [2, 3], [13, 14]]


@both_kinds
@pytest.mark.parametrize("unpack", [batch, sample], ids=["batch", "sample"])
def test_every_step_has_its_own_requests(model, kind, unpack):
    model(INPUTS)
    inner = triton_context(lambda triton_context: [each["number"] for each in triton_context.parameters])
    seen = []

    @group_by_keys
    @unpack
    @group_by_values("x")
    @kind
    def infer(x, k=None):
        before = inner()
        for _ in range(2):
            yield [x]
            assert inner() == before
        seen.append((before, x[:, 0].tolist()))

    outside = CALL_FRAME.get()
    stream = infer([Requested(1), Requested(2, k=column(1)), Requested(3), Requested(1)])
    assert responses(stream, 4) == [[1, 1], [2, 2], [3, 3], [1, 1]]
    assert all(numbers == rows for numbers, rows in seen)
    assert CALL_FRAME.get() is outside


@both_kinds
@pytest.mark.parametrize("unpack", [batch, sample], ids=["batch", "sample"])
def test_a_stream_may_be_advanced_and_closed_in_any_context(model, kind, unpack):
    model(INPUTS)
    inner = triton_context(lambda triton_context: [each["number"] for each in triton_context.parameters])
    closed = []

    @unpack
    @kind
    def infer(x):
        try:
            while True:
                yield [column(inner()[0])]
        finally:
            closed.append(inner())

    async def main():
        stream = infer([Requested(7)])
        for _ in range(3):
            if kind is plain:
                step = contextvars.copy_context().run(next, stream)
            else:
                step = await asyncio.create_task(next_of(stream))
            (response,) = step
            assert response["y"].item() == 7
        await asyncio.create_task(close(stream))
        assert closed == [[7]]

    run(main())


def test_an_abandoned_step_may_be_closed_in_another_context(monkeypatch):
    complaints = []
    monkeypatch.setattr("sys.unraisablehook", complaints.append)

    async def nothing(x):
        await asyncio.Event().wait()
        yield [x]

    async def coroutine(x):
        await asyncio.Event().wait()

    async def main(stream):
        await (anext(stream) if inspect.isasyncgen(stream) else stream)

    for infer in (nothing, coroutine):
        started = main(batch(infer)([Requested(1)]))
        contextvars.copy_context().run(drive, started)
        contextvars.copy_context().run(started.close)
        del started
        gc.collect(1)
    # Python 3.12.1 and earlier also complain that the generator is already running.
    assert [each for each in complaints if isinstance(each.exc_value, ValueError)] == []


def drive(coroutine):
    """Runs a coroutine until it waits, without an event loop."""
    loop = asyncio.new_event_loop()
    try:
        asyncio._set_running_loop(loop)
        coroutine.send(None)
    finally:
        asyncio._set_running_loop(None)
        loop.close()


def test_requests_without_a_server_are_not_cancelled():
    called = []
    plain_request = Request({"x": column(1)})

    remove = plain_request._on_cancel(lambda: called.append(True))
    remove()

    assert plain_request.is_cancelled() is False
    assert called == []


def test_a_response_may_be_marked_as_final():
    assert Response({}).final is False
    assert Response({}, final=True).final is True
    assert repr(Response({"y": 1}, final=True)) == "Response({'y': 1}, final=True)"
    assert repr(Response({"y": 1})) == "Response({'y': 1})"
