"""All kinds of callables on decoupled models."""

from __future__ import annotations

import asyncio
import functools
import threading

import numpy as np
import pytest
from serving import bind_floats, infer_json, json_floats
from streaming import bind_stream, count, count_async, number_of, one_by_one, responses, stream_to, streamed, values_of

from pytriton.client import DecoupledModelClient
from pytriton.exceptions import PyTritonModelConfigError
from pytriton.proxy.types import Response


class Streamer:
    def generator(self, requests):
        yield from count(requests)

    async def async_generator(self, requests):
        async for step in count_async(requests):
            yield step


class CallableStreamer(Streamer):
    def __call__(self, requests):
        yield from count(requests)


class AsyncCallableStreamer(Streamer):
    async def __call__(self, requests):
        async for step in count_async(requests):
            yield step


def count_from(start, requests):
    for value in range(start, number_of(requests)):
        yield responses(requests, value)


class Steps:
    """An iterator that is not a generator."""

    def __init__(self, requests):
        self._steps = count(requests)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._steps)


class AsyncSteps:
    def __init__(self, requests):
        self._steps = count(requests)

    def __aiter__(self):
        return self

    async def __anext__(self):
        try:
            return next(self._steps)
        except StopIteration:
            raise StopAsyncIteration from None


THAT_YIELD = {
    "a method": Streamer().generator,
    "an async method": Streamer().async_generator,
    "an object": CallableStreamer(),
    "an async object": AsyncCallableStreamer(),
    "a partial": functools.partial(count_from, 0),
    "a function that returns a generator": lambda requests: count(requests),
    "a function that returns an async generator": lambda requests: count_async(requests),
    "a class of iterators": Steps,
    "a class of async iterators": AsyncSteps,
}


@pytest.mark.parametrize("kind", THAT_YIELD)
def test_generators_of_every_kind_are_streamed(triton, name, kind):
    bind_stream(triton, name, THAT_YIELD[kind])

    with stream_to(triton) as stream:
        for _ in range(2):
            assert values_of(stream.send(name, 3).replies()) == [0, 1, 2, None]


async def return_one(requests):
    await asyncio.sleep(0)
    return responses(requests, 1)


async def return_none(requests):
    return [None for _ in requests]


RETURNS = {
    "a function": (lambda requests: responses(requests, 1), [1]),
    "a function that returns None": (lambda requests: [None for _ in requests], [None]),
    "a function that ends": (lambda requests: [Response({}, final=True) for _ in requests], [None]),
    "a coroutine": (return_one, [1]),
    "a coroutine that returns None": (return_none, [None]),
}


@pytest.mark.parametrize("kind", RETURNS)
def test_functions_of_a_decoupled_model_give_one_response_or_none(triton, name, kind):
    infer_func, expected = RETURNS[kind]
    bind_stream(triton, name, infer_func)

    assert streamed(triton, name, 1) == (expected, [True])


def test_a_plain_function_of_a_decoupled_model_serves_one_batch_at_a_time(triton, name):
    running = []

    def infer(requests):
        running.append(1)
        assert len(running) == 1
        threading.Event().wait(0.01)
        running.pop()
        return responses(requests, 1)

    bind_stream(triton, name, infer, one_by_one(decoupled=True))
    with stream_to(triton) as stream:
        for _ in range(8):
            stream.send(name, 1)
        assert values_of(stream.replies(8)) == [1] * 8


@pytest.mark.parametrize("kind", ["a method", "an async method", "an object", "an async object", "a partial"])
def test_generators_are_refused_on_a_model_that_is_not_decoupled(triton, name, kind):
    which = "an async generator function" if "async" in kind else "a generator function"
    with pytest.raises(PyTritonModelConfigError) as caught:
        bind_floats(triton, name, THAT_YIELD[kind])

    assert str(caught.value) == (
        f"Model '{name}': infer_func is {which}, which may send several responses to a request; set "
        "ModelConfig(decoupled=True), or return the responses instead of yielding them."
    )


def test_returning_a_generator_is_an_error_unless_the_model_is_decoupled(triton, name):
    bind_floats(triton, name, lambda requests: count(requests))

    status, response = infer_json(triton, name, [json_floats([1])])
    assert status >= 400
    assert response["error"].startswith(f"model '{name}': the inference callable returned a generator")


def test_a_step_may_leave_out_all_outputs(triton, name):
    def steps(requests):
        yield responses(requests, 1)
        yield [{} for _ in requests]
        yield responses(requests, 2)

    bind_stream(triton, name, steps)

    with DecoupledModelClient(f"grpc://127.0.0.1:{triton.config.grpc_port}", name) as client:
        received = [{key: value.item() for key, value in each.items()} for each in client.infer_sample(np.float32([1]))]
    assert received == [{"y": 1}, {}, {"y": 2}]
