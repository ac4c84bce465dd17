"""Helpers of the tests of generators under decorators."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
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
from pytriton.model_config import Tensor
from pytriton.proxy.types import Request, Response

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


class Requested(Request):
    """A request that can be cancelled, as those of the worker can."""

    def __init__(self, number, **inputs):
        super().__init__({"x": np.array([[number]], float), **inputs}, parameters={"number": number})
        self.cancelled = False
        self.callbacks = []

    def is_cancelled(self):
        return self.cancelled

    def _on_cancel(self, callback):
        if self.cancelled:
            callback()
            return lambda: None
        self.callbacks.append(callback)
        return functools.partial(self.callbacks.remove, callback)

    def cancel(self):
        self.cancelled = True
        for callback in self.callbacks:
            callback()


def column(*values):
    return np.array(values, float).reshape(-1, 1)


def requests_with_k(*values):
    return [Requested(number, k=column(value)) for number, value in enumerate(values)]


def plain(function):
    return function


def asynchronous(function):
    """The asynchronous generator function that does the same as a generator function."""

    @functools.wraps(function)
    async def generate(*args, **kwargs):
        with contextlib.closing(function(*args, **kwargs)) as stream:
            for step in stream:
                await asyncio.sleep(0)
                yield step

    return generate


both_kinds = pytest.mark.parametrize("kind", [plain, asynchronous])


async def next_of(stream):
    return next(stream) if inspect.isgenerator(stream) else await anext(stream)


async def close(stream):
    stream.close() if inspect.isgenerator(stream) else await stream.aclose()


def run(main):
    """Runs a coroutine, and makes sure that it leaves nothing behind."""
    complaints = []

    async def watched():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        returned = await main
        gc.collect(1)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return returned

    returned = asyncio.run(watched())
    gc.collect(1)
    assert complaints == []
    return returned


def steps_of(stream):
    """All steps, of a generator of either kind."""
    if hasattr(stream, "__next__"):
        return list(stream)

    async def collect():
        return [step async for step in stream]

    return run(collect())


def responses(stream, count):
    """What each request gets, up to its end: values, and the type of an error."""
    got = [[] for _ in range(count)]
    ended = set()
    for step in map(list, steps_of(stream)):
        assert len(step) == count
        for position, item in enumerate(step):
            if item is None or position in ended:
                continue
            if isinstance(item, BaseException):
                got[position].append(type(item))
                ended.add(position)
                continue
            if isinstance(item, Response) and item.final:
                ended.add(position)
            got[position] += [value_of(array) for array in (item.values() if hasattr(item, "values") else item)]
    return got


def value_of(array):
    return array.item() if array.size == 1 else array.tolist()


def waiting(closed, cleanup=None):
    """An asynchronous generator that yields once and then waits for ever."""

    @sample
    async def infer(x):
        try:
            yield [x]
            await asyncio.Event().wait()
        finally:
            if cleanup is not None:
                await cleanup()
            closed.append(x.item())

    return infer


async def turns():
    for _ in range(3):
        await asyncio.sleep(0)
