"""Models that call other models, and models to call."""

from __future__ import annotations

import asyncio
import time

import numpy as np
from serving import bind_floats, send_floats
from streaming import bind_stream

from pytriton.decorators import batch, triton_context
from pytriton.model_config import ModelConfig

CODES = {"not found": 2, "invalid": 3, "unavailable": 4, "unsupported": 5}
ROW = {"x": np.array([[1, 2, 3]], np.float32)}


def bind_caller(triton, name, send_request, **arguments):
    """Binds a model whose callable is ``ask(context, requests)``."""
    if asyncio.iscoroutinefunction(send_request):

        @triton_context
        async def call(requests, triton_context):
            return await send_request(triton_context, requests)
    else:

        @triton_context
        def call(requests, triton_context):
            return send_request(triton_context, requests)

    bind_floats(triton, name, call, **arguments)


def called(triton, name, send_request, **arguments):
    """Has ``ask(context)`` called once within a bound model, and returns what it returns or raises what it raises."""
    kept = []

    def call(context, requests):
        try:
            kept.append((send_request(context), None))
        except BaseException as error:
            kept.append((None, error))
        return requests

    async def call_async(context, requests):
        try:
            kept.append((await send_request(context), None))
        except BaseException as error:
            kept.append((None, error))
        return [{"y": request["x"]} for request in requests]

    bind_caller(triton, name, call_async if asyncio.iscoroutinefunction(send_request) else call, **arguments)
    assert send_floats(triton, name, [0]) == [0]
    ((result, error),) = kept
    if error is not None:
        raise error
    return result


def bind_callees(triton):
    """Models to call: ``double``, ``fails``, ``slow``, ``count`` and ``silent``."""
    bind_floats(triton, "double", batch(lambda x: {"y": x * 2}), config=ModelConfig(max_batch_size=8))
    bind_floats(triton, "fails", raising)
    bind_floats(triton, "slow", sleeping, config=ModelConfig(batching=True, max_batch_size=1))
    bind_stream(triton, "count", counting)
    bind_stream(triton, "silent", lambda requests: [None])


def raising(requests):
    raise ValueError("the weights are lost")


def sleeping(requests):
    deadline = time.monotonic() + float(requests[0]["x"][0, 0])
    while time.monotonic() < deadline and not requests[0].is_cancelled():
        time.sleep(0.002)
    return requests


def counting(requests):
    for number in range(int(requests[0]["x"][0, 0])):
        yield [{"y": np.full((1, 1), number, np.float32)} for _ in requests]
