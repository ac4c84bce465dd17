"""Coroutine functions under decorators."""

from __future__ import annotations

import asyncio
import functools
import inspect

import numpy as np
import pytest

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
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config import Tensor
from pytriton.proxy.context import CALL_FRAME
from pytriton.proxy.types import Request

DECORATORS = {
    "batch": batch,
    "sample": sample,
    "group_by_keys": group_by_keys,
    "fill_optionals": fill_optionals(k=np.ones(1)),
    "group_by_values": group_by_values("k"),
    "pad_batch": pad_batch,
    "first_value": first_value("k"),
    "triton_context": triton_context,
}
INPUTS = (Tensor(name="x", shape=(1,), dtype=float), Tensor(name="k", shape=(1,), dtype=float, optional=True))


def request(number, **inputs):
    return Request({"x": np.array([[number]], float), **inputs}, parameters={"number": number})


def column(*values):
    return np.array(values, float).reshape(-1, 1)


@pytest.mark.parametrize("name", DECORATORS)
def test_decorated_coroutine_functions_stay_coroutine_functions(name):
    class Model:
        @DECORATORS[name]
        async def method(self, x):
            return [x]

        @DECORATORS[name]
        def plain(self, x):
            return [x]

        @staticmethod
        @DECORATORS[name]
        async def static(x):
            return [x]

    async def function(x):
        return [x]

    decorated = [DECORATORS[name](function), Model.method, Model().method, Model.static]
    assert all(map(inspect.iscoroutinefunction, decorated))
    assert not inspect.iscoroutinefunction(Model().plain)


def test_all_decorators_work_on_a_coroutine_function(model):
    model(INPUTS, max_batch_size=8)
    seen = []

    @fill_optionals(k=np.array([2.0]))
    @group_by_keys
    @batch
    @group_by_values("k")
    @pad_batch
    @first_value("k")
    @triton_context
    async def infer(x, k, triton_context):
        await asyncio.sleep(0)
        seen.append((k, len(x), [each["number"] for each in triton_context.parameters]))
        return {"y": x * k}

    responses = asyncio.run(infer([request(1), request(2, k=column(3)), request(3)]))

    assert [each["y"].tolist() for each in responses] == [[[2]], [[6]], [[6]]]
    assert seen == [(2, 8, [1, 3]), (3, 8, [2])]


def test_sample_awaits_all_requests_at_the_same_time():
    async def main():
        everyone = asyncio.Event()
        waiting = []

        @sample
        async def infer(x):
            waiting.append(x)
            if len(waiting) == 3:
                everyone.set()
            await asyncio.wait_for(everyone.wait(), 10)
            return [x]

        return await infer([request(1), request(2), request(3)])

    assert [each[0].item() for each in asyncio.run(main())] == [1, 2, 3]


def test_groups_of_keys_are_joined_in_order():
    @group_by_keys
    @batch
    async def infer(x, k=None):
        await asyncio.sleep(0)
        return [x if k is None else -x]

    responses = asyncio.run(infer([request(1), request(2, k=column(1)), request(3)]))

    assert [each[0].item() for each in responses] == [1, -2, 3]


def test_the_context_is_available_behind_a_custom_coroutine(model):
    model(INPUTS)

    def own(function):
        @functools.wraps(function)
        async def wrapper(*args, **kwargs):
            await asyncio.sleep(0)
            return await function(*args, **kwargs)

        return wrapper

    @batch
    @own
    @group_by_values("k")
    @own
    @triton_context
    async def infer(x, k, triton_context):
        return [np.array([[each["number"]] for each in triton_context.row_parameters])]

    responses = asyncio.run(infer([request(1, k=column(1)), request(2, k=column(2)), request(3, k=column(1))]))

    assert [each["y"].item() for each in responses] == [1, 2, 3]


def test_concurrent_calls_have_their_own_contexts(model):
    model(INPUTS)

    @batch
    async def infer(x):
        await asyncio.sleep(0)
        return await inner(x=x)

    @triton_context
    async def inner(x, triton_context):
        return [np.array([[triton_context.parameters[0]["number"]]])]

    async def main():
        before = CALL_FRAME.get()
        replies = await asyncio.gather(*(infer([request(number)]) for number in range(5)))
        await infer([request(5)])
        assert CALL_FRAME.get() == before
        return replies

    assert [each[0]["y"].item() for each in asyncio.run(main())] == list(range(5))


@pytest.mark.parametrize("decorator", [sample, group_by_keys], ids=["sample", "group_by_keys"])
def test_a_failure_is_raised_and_cancels_the_other_calls(decorator):
    ended = []

    async def infer(requests=None, x=None, k=None):
        if k is not None or (requests and "k" in requests[0]):
            raise ZeroDivisionError
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append(True)
            raise

    async def main():
        with pytest.raises(ZeroDivisionError):
            await decorator(infer)([request(1), request(2, k=column(1))])
        await asyncio.sleep(0)
        assert ended == [True]

    asyncio.run(main())


def test_outputs_are_checked_when_the_coroutine_returns():
    @batch
    async def infer(x):
        return {"y": x[:0]}

    with pytest.raises(PyTritonValidationError, match="'y' has 0 rows, but the batch has 1"):
        asyncio.run(infer([request(1)]))


def test_an_object_whose_call_is_a_coroutine_may_be_decorated():
    class Model:
        @batch
        async def __call__(self, x):
            return [x * 2]

    class Plain:
        async def __call__(self, x):
            return [x * 3]

    assert asyncio.run(Model()([request(1)]))[0][0].item() == 2
    assert asyncio.run(batch(Plain())([request(1)]))[0][0].item() == 3
