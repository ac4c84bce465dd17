"""Streams that fail, and invalid steps of streams."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from serving import wait_until
from streaming import bind_stream, events_of, responses, streamed


def fail_in_mid_stream(requests):
    yield responses(requests, 1)
    yield responses(requests, 2)
    raise ZeroDivisionError("the sky fell")


async def fail_in_mid_stream_async(requests):
    yield responses(requests, 1)
    yield responses(requests, 2)
    await asyncio.sleep(0)
    raise ZeroDivisionError("the sky fell")


@pytest.mark.parametrize("infer_func", [fail_in_mid_stream, fail_in_mid_stream_async])
def test_an_error_in_mid_stream_arrives_after_the_sent_responses(triton, name, infer_func, caplog):
    bind_stream(triton, name, infer_func)
    error = f"model '{name}': ZeroDivisionError: the sky fell"

    assert streamed(triton, name, 1) == ([1, 2, error], [False, False, True])
    with events_of(triton, name, {"x": 1}) as events:
        assert [event.get("y") or event["error"] for event in events] == [1, 2, error]
    (record, _) = wait_until(
        lambda: (found := [each for each in caplog.records if name in each.getMessage()])[1:] and found
    )
    assert record.levelname == "ERROR"
    assert f"in {infer_func.__name__}\n    raise ZeroDivisionError" in record.getMessage()


async def fail_at_once_async(requests):
    raise ZeroDivisionError("the sky fell")
    yield


def fail_at_once(requests):
    raise ZeroDivisionError("the sky fell")
    yield


def fail_without_yield(requests):
    raise ZeroDivisionError("the sky fell")


@pytest.mark.parametrize("infer_func", [fail_at_once, fail_at_once_async, fail_without_yield])
def test_an_error_before_the_first_response_is_the_only_response(triton, name, infer_func):
    bind_stream(triton, name, infer_func)
    error = f"model '{name}': ZeroDivisionError: the sky fell"

    assert streamed(triton, name, 1) == ([error], [True])
    with events_of(triton, name, {"x": 1}) as events:
        assert list(events) == [{"error": error}]
        assert events.response.status >= 400


WRONG_STEPS = {
    "no list": (lambda requests: 7, "the inference callable returned an int, not a list with one response per request"),
    "too many": (lambda requests: [None, None], "the inference callable returned 2 responses to 1 requests"),
    "a wrong dtype": (lambda requests: [{"y": np.full((1, 1), 1j)}], "output 'y' has dtype complex128, but float32"),
    "a wrong rank": (
        lambda requests: [{"y": [0.0]}],
        "output 'y' has shape (1,), but float32 (batch",
    ),
    "an unknown output": (lambda requests: [{"w": requests[0]["x"]}], "returned an output 'w' that the model does"),
    "no array": (lambda requests: [{"y": {1}}], "output 'y' is a set, but float32 (batch, -1) was declared"),
}


@pytest.mark.parametrize("kind", WRONG_STEPS)
@pytest.mark.parametrize("is_async", [False, True])
def test_an_invalid_step_ends_the_stream_with_an_explanation(triton, name, kind, is_async):
    make, expected = WRONG_STEPS[kind]
    closed = []

    def steps(requests):
        try:
            yield responses(requests, 1)
            yield make(requests)
            yield responses(requests, 2)
        finally:
            closed.append(True)

    async def steps_async(requests):
        try:
            yield responses(requests, 1)
            yield make(requests)
            yield responses(requests, 2)
        finally:
            closed.append(True)

    bind_stream(triton, name, steps_async if is_async else steps)

    (first, error), _ = streamed(triton, name, 1)
    assert first == 1
    assert error.startswith(f"model '{name}': ") and expected in error
    assert closed == [True]
