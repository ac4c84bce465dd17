"""Coroutines: many batches in flight on one instance, in one event loop for each model."""

from __future__ import annotations

import asyncio
import functools
import sys

import numpy as np
import pytest
from serving import (
    NO_BATCHING,
    Background,
    InferenceServerException,
    at_once,
    bind_floats,
    counted_statistics_of,
    metrics_of,
    running_triton,
    send_floats,
    wait_until,
)
from streaming import Gates, behind, number_of, one_by_one, row, send_number, streamed, together

from pytriton.decorators import batch, sample
from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.model_config import DynamicBatcher, ModelConfig, QueuePolicy, Tensor, TimeoutAction


async def double(requests):
    await asyncio.sleep(0)
    return [{"y": request["x"] * 2} for request in requests]


def pending(triton, name):
    """How many requests wait in Triton's queue."""
    return metrics_of(triton, name)["nv_inference_pending_request_count"]


def test_a_coroutine_responds_to_each_request(client, triton, name):
    bind_floats(triton, name, double)

    assert client.infer(name, {"x": row(1, 2)})["y"].tolist() == [[2, 4]]
    assert client.infer(name, {"x": np.ones((3, 1), np.float32)})["y"].tolist() == [[2]] * 3


def test_each_request_of_a_batch_gets_its_own_response(triton, grpc_client, name):
    sizes = []

    async def double(requests):
        sizes.append(len(requests))
        await asyncio.sleep(0)
        return [{"y": request["x"] * 2} for request in requests]

    bind_floats(triton, name, double, config=together())

    received = at_once(8, lambda number: grpc_client.infer(name, {"x": row(number)})["y"].item())

    assert received == [2 * number for number in range(8)]
    assert max(sizes) > 1
    statistics = counted_statistics_of(triton, name, 8)
    assert (statistics["inference_count"], statistics["execution_count"]) == (8, len(sizes))


@pytest.mark.parametrize(("decorator", "config"), [(batch, ModelConfig()), (sample, NO_BATCHING)])
def test_decorators_take_coroutines(client, triton, name, decorator, config):
    @decorator
    async def double(x):
        await asyncio.sleep(0)
        return {"y": x * 2}

    bind_floats(triton, name, double, config=config)
    x = row(1, 2) if config.batching else row(1, 2)[0]

    np.testing.assert_array_equal(client.infer(name, {"x": x})["y"], x * 2)


def test_results_of_a_coroutine_under_batch_are_split_by_request(triton, grpc_client, name):
    sizes = []

    @batch
    async def double(x):
        sizes.append(len(x))
        await asyncio.sleep(0)
        return [x * 2]

    bind_floats(triton, name, double, config=together())

    def send(number):
        sent = np.full((number % 3 + 1, 2), number, np.float32)
        return np.array_equal(grpc_client.infer(name, {"x": sent})["y"], sent * 2)

    assert all(at_once(8, send))
    assert max(sizes) > 3


def test_a_coroutine_under_batch_has_many_batches_in_flight(triton, grpc_client, name):
    gates = Gates()

    @batch
    async def wait(x):
        await gates.wait(int(x.flat[0]))
        return [x]

    bind_floats(triton, name, wait, config=one_by_one())
    requests = [send_number(grpc_client, name, number) for number in range(8)]
    wait_until(lambda: len(gates.entered) == 8)
    gates.open(*range(8))

    assert [request.finish().result for request in requests] == list(range(8))


def test_a_coroutine_returns_strings(client, triton, name):
    async def greet(requests):
        return [[np.array([[f"¡{text.decode()}!" for text in request["x"].flat]])] for request in requests]

    triton.bind(name, greet, [Tensor((-1,), bytes, "x")], [Tensor((-1,), bytes, "y")])

    assert client.infer(name, {"x": np.array([[b"a", b"bc"]], object)})["y"].tolist() == [
        ["¡a!".encode(), "¡bc!".encode()]
    ]


async def scale(factor, requests):
    return [{"y": request["x"] * factor} for request in requests]


class Doubler:
    async def infer(self, requests):
        return await double(requests)

    __call__ = infer


COROUTINE_FUNCTIONS = {
    "a method": Doubler().infer,
    "an object with __call__": Doubler(),
    "a partial": functools.partial(scale, 2),
    "a function that returns a coroutine": lambda requests: double(requests),
}


@pytest.mark.parametrize("kind", COROUTINE_FUNCTIONS)
def test_coroutines_of_any_callable_are_awaited(client, triton, name, kind):
    bind_floats(triton, name, COROUTINE_FUNCTIONS[kind])

    assert client.infer(name, {"x": row(3)})["y"].item() == 6


@pytest.mark.parametrize("kind", COROUTINE_FUNCTIONS)
def test_a_coroutine_on_a_decoupled_model_gives_one_response(triton, name, kind):
    bind_floats(triton, name, COROUTINE_FUNCTIONS[kind], config=ModelConfig(decoupled=True))

    assert streamed(triton, name, 3) == ([6], [True])


def test_each_batch_gets_its_responses_when_its_own_coroutine_returns(triton, grpc_client, name):
    gates = Gates()
    bind_floats(triton, name, behind(gates), config=one_by_one())
    requests = [send_number(grpc_client, name, number) for number in range(4)]
    wait_until(lambda: len(gates.entered) == 4)

    for number in (2, 0, 3):
        gates.open(number)
        assert requests[number].finish().result == number
    assert requests[1].is_alive()
    gates.open(1)
    assert requests[1].finish().result == 1


def test_256_batches_are_in_flight_by_default(triton, grpc_client, name):
    gates = Gates()
    bind_floats(triton, name, behind(gates), config=one_by_one())
    requests = [send_number(grpc_client, name, number) for number in range(258)]
    wait_until(lambda: len(gates.entered) == 256)
    wait_until(lambda: pending(triton, name) == 2)

    assert len(gates.entered) == 256
    gates.open(*range(258))
    assert [request.finish().result for request in requests] == list(range(258))


def test_a_batch_beyond_the_limit_waits_in_the_queue_until_another_ends(triton, grpc_client, name):
    gates = Gates()
    bind_floats(triton, name, behind(gates), config=one_by_one(max_in_flight=2))
    requests = [send_number(grpc_client, name, number) for number in range(5)]
    wait_until(lambda: len(gates.entered) == 2)
    wait_until(lambda: pending(triton, name) == 3)
    assert len(gates.entered) == 2

    for ended in range(1, 4):
        gates.open(gates.entered[ended])
        requests[gates.entered[ended]].finish()
        wait_until(lambda ended=ended: len(gates.entered) == 2 + ended)
        assert sum(request.is_alive() for request in requests) == 5 - ended
    gates.open(*range(5))
    assert [request.finish().result for request in requests] == list(range(5))


def test_triton_refuses_requests_if_its_queue_is_full(triton, grpc_client, name):
    gates = Gates()
    policy = QueuePolicy(timeout_action=TimeoutAction.REJECT, max_queue_size=1)
    config = one_by_one(max_in_flight=1, batcher=DynamicBatcher(default_queue_policy=policy))
    bind_floats(triton, name, behind(gates), config=config)
    requests = []

    def refused():
        requests.append(send_number(grpc_client, name, len(requests)))
        return [request for request in requests if request.error is not None]

    (refusal,) = wait_until(refused)[:1]
    assert "maximum queue size" in refusal.error.message()
    gates.open(*range(len(requests)))
    served = [request.result for request in requests if request.finish().error is None]
    assert 1 <= len(served) <= 3  # one is in flight, one with the instance, one in the queue


def test_inputs_do_not_change_while_a_coroutine_waits(triton, grpc_client, name):
    gates = Gates()
    bind_floats(triton, name, behind(gates), config=one_by_one())
    sent = np.arange(1, 100_001, dtype=np.float32)[None]
    waits = Background(lambda: grpc_client.infer(name, {"x": sent})["y"])
    wait_until(lambda: gates.entered == [1])
    gates.open(2)

    for _ in range(30):
        other = np.full_like(sent, 2)
        np.testing.assert_array_equal(grpc_client.infer(name, {"x": other})["y"], other)
    gates.open(1)
    np.testing.assert_array_equal(waits.finish().result, sent)


async def explode(requests):
    await asyncio.sleep(0)
    raise ZeroDivisionError("the sky fell")


async def leave(requests):
    raise SystemExit(3)


async def cancel_itself(requests):
    asyncio.current_task().cancel()
    await asyncio.sleep(30)


async def nothing(requests):
    return None


async def too_many(requests):
    return [{"y": requests[0]["x"]}] * 2


async def wrong_dtype(requests):
    return [{"y": request["x"].astype(np.complex64)} for request in requests]


ERRORS = {
    explode: "ZeroDivisionError: the sky fell",
    leave: "SystemExit: 3",
    cancel_itself: "CancelledError",
    nothing: "the inference callable returned None, not a list with one response per request",
    too_many: "the inference callable returned 2 responses to 1 requests: return one per request",
    wrong_dtype: "output 'y' has dtype complex64, but float32 (batch, -1) was declared: return an array of the",
}


@pytest.mark.parametrize("infer_func", ERRORS, ids=lambda infer_func: infer_func.__name__)
def test_an_error_in_a_coroutine_reaches_the_client_and_serving_continues(triton, client, name, infer_func):
    fails = [True]

    async def fails_once(requests):
        return await (infer_func(requests) if fails.pop() else double(requests))

    fails[:0] = [False]
    bind_floats(triton, name, fails_once)

    with pytest.raises(InferenceServerException) as caught:
        client.infer(name, {"x": row(1)})
    assert caught.value.message().startswith(f"model '{name}': {ERRORS[infer_func]}")
    assert client.infer(name, {"x": row(1)})["y"].item() == 2


def test_a_plain_function_whose_awaitable_exits_fails_its_request_alone(triton, client, name):
    def infer(requests):
        async def result():
            if number_of(requests) < 0:
                sys.exit(3)
            return requests

        return result()

    bind_floats(triton, name, infer)

    with pytest.raises(InferenceServerException, match="SystemExit: 3"):
        client.infer(name, {"x": row(-1)})
    assert client.infer(name, {"x": row(1)})["y"].tolist() == [[1]]


def test_the_traceback_of_a_coroutine_is_logged(triton, name, caplog):
    bind_floats(triton, name, explode)

    send_floats(triton, name, [1])

    (record,) = wait_until(lambda: [each for each in caplog.records if name in each.getMessage()])
    assert record.levelname == "ERROR"
    assert "in explode\n    raise ZeroDivisionError" in record.getMessage()


def test_an_exception_that_a_coroutine_returns_fails_its_request_alone(triton, grpc_client, name):
    sizes = []

    async def odd_fails(requests):
        sizes.append(len(requests))
        await asyncio.sleep(0)
        return [
            ValueError(f"odd: {request['x'].item():.0f}") if request["x"].item() % 2 else {"y": request["x"]}
            for request in requests
        ]

    bind_floats(triton, name, odd_fails, config=together())

    def send(number):
        try:
            return grpc_client.infer(name, {"x": row(number)})["y"].item()
        except InferenceServerException as error:
            return error.message()

    assert at_once(6, send) == [
        number if number % 2 == 0 else f"model '{name}': ValueError: odd: {number}" for number in range(6)
    ]
    assert max(sizes) > 1


def test_an_unrecoverable_error_in_a_coroutine_ends_the_server():
    async def give_up(requests):
        raise PyTritonUnrecoverableError("the GPU fell off the bus")

    with running_triton() as triton:
        bind_floats(triton, "broken", give_up)
        triton.run()

        assert send_floats(triton, "broken", [1]) == (
            "model 'broken': PyTritonUnrecoverableError: the GPU fell off the bus"
        )
        wait_until(lambda: not triton.is_alive())
