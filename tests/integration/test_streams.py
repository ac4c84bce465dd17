"""Streams: any number of responses to a request, sent as they are produced."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from serving import FLOATS_IN, FLOATS_OUT, InferenceServerException, statistics_of, wait_until
from streaming import (
    COUNTERS,
    STREAMING,
    bind_stream,
    by_id,
    events_of,
    number_of,
    one_by_one,
    responses,
    row,
    stream_to,
    streamed,
    values_of,
)

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.proxy.types import Response

TEXT_IN = [Tensor(name="text", shape=(1,), dtype=bytes), Tensor(name="count", shape=(1,), dtype=np.int32)]
TEXT_OUT = [Tensor(name="token", shape=(1,), dtype=bytes), Tensor(name="score", shape=(1,), dtype=np.float64)]


class Gates:
    """A generator function and an async one: each step waits for its gate; what they have yielded is counted."""

    def __init__(self):
        self.passed = 0
        self._gates = threading.Semaphore(0)

    def open(self):
        self._gates.release()

    def generator(self, requests):
        for value in range(number_of(requests)):
            assert self._gates.acquire(timeout=30)
            self.passed += 1
            yield responses(requests, value)

    async def async_generator(self, requests):
        for value in range(number_of(requests)):
            assert await asyncio.to_thread(self._gates.acquire, timeout=30)
            self.passed += 1
            yield responses(requests, value)


@pytest.mark.parametrize("number", [0, 1, 5])
def test_a_request_gets_any_number_of_responses_and_then_its_end(triton, name, counter, number):
    bind_stream(triton, name, counter)

    values, finals = streamed(triton, name, number)

    assert values == [*range(number), None]
    assert finals == [False] * number + [True]


def test_many_responses_arrive_in_order(triton, name, counter):
    bind_stream(triton, name, counter)

    values, _ = streamed(triton, name, 3000)

    assert values == [*range(3000), None]


@pytest.mark.parametrize("kind", COUNTERS)
def test_responses_are_sent_as_they_are_made(triton, name, kind):
    gates = Gates()
    bind_stream(triton, name, getattr(gates, kind))
    with stream_to(triton) as stream:
        stream.send(name, 3)
        for value in range(3):
            assert gates.passed == value
            assert not stream.has_reply()
            gates.open()
            assert stream.reply().y == value
        assert stream.reply().final


@pytest.mark.parametrize("kind", COUNTERS)
def test_events_are_sent_as_they_are_made(triton, name, kind):
    gates = Gates()
    bind_stream(triton, name, getattr(gates, kind))
    with events_of(triton, name, {"x": 3}) as events:
        for value in range(3):
            gates.open()
            assert events.event()["y"] == value
            assert gates.passed == value + 1
        assert events.event() is None


def test_a_client_that_requests_no_empty_end_gets_responses_only(triton, name, counter):
    bind_stream(triton, name, counter)
    with stream_to(triton) as stream:
        stream.send(name, 2, enable_empty_final_response=False)
        stream.send(name, 1, enable_empty_final_response=False)

        replies = [stream.reply() for _ in range(3)]

    assert sorted(values_of(replies)) == [0, 0, 1]


def last_with_data(requests):
    yield responses(requests, 1)
    yield [Response(each, final=True) for each in responses(requests, 2)]


async def last_with_data_async(requests):
    for step in last_with_data(requests):
        yield step


def last_without_data(requests):
    yield responses(requests, 1)
    yield [Response({}, final=True) for _ in requests]
    yield responses(requests, 2)


async def last_without_data_async(requests):
    for step in last_without_data(requests):
        yield step


@pytest.mark.parametrize("infer_func", [last_with_data, last_with_data_async])
def test_a_response_marked_as_final_is_the_last(triton, name, infer_func):
    bind_stream(triton, name, infer_func)

    assert streamed(triton, name, 1) == ([1, 2], [False, True])


@pytest.mark.parametrize("infer_func", [last_without_data, last_without_data_async])
def test_an_end_without_data_ends_a_request_and_the_rest_is_dropped(triton, name, infer_func):
    bind_stream(triton, name, infer_func)

    with stream_to(triton) as stream:
        assert values_of(stream.send(name, 1).replies()) == [1, None]
        assert values_of(stream.send(name, 1).replies()) == [1, None]


def test_a_response_is_a_dictionary_or_a_list_in_the_order_of_the_outputs(triton, name):
    def both(requests):
        yield [{"y": requests[0]["x"], "z": requests[0]["x"] * 2}]
        yield ([requests[0]["x"] * 3, requests[0]["x"] * 4],)
        yield [Response({"y": requests[0]["x"] * 5, "z": requests[0]["x"] * 6})]

    two = [*FLOATS_OUT, Tensor(name="z", shape=(-1,), dtype=np.float32)]
    triton.bind(name, both, FLOATS_IN, two, config=STREAMING)

    with stream_to(triton) as stream:
        replies = stream.send(name, 1).replies()
    assert [(each.outputs["y"].item(), each.outputs["z"].item()) for each in replies[:-1]] == [(1, 2), (3, 4), (5, 6)]


def test_responses_may_differ_in_shape(triton, name):
    def grow(requests):
        for size in (0, 3, 100_000):
            yield [{"y": np.arange(size, dtype=np.float32)[None]}]

    bind_stream(triton, name, grow)

    with stream_to(triton) as stream:
        replies = stream.send(name, 1).replies()
    assert [each.outputs["y"].shape for each in replies[:-1]] == [(1, 0), (1, 3), (1, 100_000)]
    np.testing.assert_array_equal(replies[2].outputs["y"][0], np.arange(100_000, dtype=np.float32))


def test_an_array_may_be_reused_for_the_next_step(triton, name):
    def reuse(requests):
        array = np.zeros((1, 1), np.float32)
        for value in range(200):
            array[:] = value
            yield [{"y": array}]

    async def reuse_async(requests):
        for step in reuse(requests):
            yield step

    for infer_func in (reuse, reuse_async):
        bind_stream(triton, name, infer_func)
        assert streamed(triton, name, 1)[0] == [*range(200), None]


def test_only_requested_outputs_are_sent(triton, name):
    def both(requests):
        yield [{"y": requests[0]["x"], "z": requests[0]["x"]}]

    two = [*FLOATS_OUT, Tensor(name="z", shape=(-1,), dtype=np.float32)]
    triton.bind(name, both, FLOATS_IN, two, config=STREAMING)
    import tritonclient.grpc

    with stream_to(triton) as stream:
        stream.send(name, 1, outputs=[tritonclient.grpc.InferRequestedOutput("z")])
        assert list(stream.reply().outputs) == ["z"]


def test_a_model_without_batching_streams(triton, name, counter):
    bind_stream(triton, name, counter, ModelConfig(decoupled=True, batching=False))
    with stream_to(triton) as stream:
        replies = stream.send(name, inputs={"x": np.array([2], np.float32)}).replies()

    assert values_of(replies) == [0, 1, None]
    assert replies[0].outputs["y"].shape == (1,)


def test_a_generator_under_batch_streams_without_batching(triton, name):
    @batch
    def infer(x):
        for value in range(int(x[0])):
            yield {"y": np.full_like(x, value)}

    bind_stream(triton, name, infer, ModelConfig(decoupled=True, batching=False))
    with stream_to(triton) as stream:
        assert values_of(stream.send(name, inputs={"x": np.array([2], np.float32)}).replies()) == [0, 1, None]


def test_one_grpc_stream_carries_many_requests_at_a_time(triton, name, counter):
    bind_stream(triton, name, counter, one_by_one(decoupled=True))
    with stream_to(triton) as stream:
        for number in range(20):
            stream.send(name, number, request_id=f"{number:02}")

        replies = by_id(stream.replies(20))

    assert replies == {f"{number:02}": [*range(number), None] for number in range(20)}


def test_generate_returns_a_single_response_of_a_decoupled_model(triton, name, counter):
    bind_stream(triton, name, counter)

    with events_of(triton, name, {"x": 1}, "generate") as events:
        assert events.json() == {"model_name": name, "model_version": "1", "y": 0}
    with events_of(triton, name, {"x": 2}, "generate") as events:
        assert "exactly 1 response" in events.json()["error"]


def test_unary_requests_to_decoupled_models_are_refused_by_triton(triton, client, name, counter):
    bind_stream(triton, name, counter)

    with pytest.raises(InferenceServerException, match="decoupled"):
        client.infer(name, {"x": row(1)})


def talk(requests):
    text = requests[0]["text"].item().decode()
    for number in range(int(requests[0]["count"].item())):
        yield [{"token": np.array([[f"{text} {number}"]]), "score": np.array([[number / 2]])}]


async def talk_async(requests):
    for step in talk(requests):
        await asyncio.sleep(0)
        yield step


@pytest.mark.parametrize("infer_func", [talk, talk_async])
@pytest.mark.parametrize("text", ["hello", "Grüße, 世界 \U0001f44b", 'a "quote"\nand a line', ""])
def test_generate_stream_passes_strings_and_scalars(triton, name, infer_func, text):
    triton.bind(name, infer_func, TEXT_IN, TEXT_OUT, config=STREAMING)

    with events_of(triton, name, {"text": text, "count": 2}) as events:
        assert events.response.status == 200
        assert events.response.headers["Content-Type"].startswith("text/event-stream")
        received = list(events)

    head = {"model_name": name, "model_version": "1"}
    assert received == [head | {"token": f"{text} {number}", "score": number / 2} for number in range(2)]


def test_generate_passes_strings_and_scalars(triton, name):
    triton.bind(name, talk_async, TEXT_IN, TEXT_OUT, config=STREAMING)

    with events_of(triton, name, {"text": "hello", "count": 1}, "generate") as events:
        assert events.json()["token"] == "hello 0"


def test_generate_stream_passes_parameters(triton, name):
    async def report(requests):
        temperature = requests[0].parameters["temperature"]
        for word in requests[0]["text"].item().split():
            yield [{"token": np.array([[word]], object), "score": np.array([[temperature]], np.float64)}]

    triton.bind(name, report, TEXT_IN, TEXT_OUT, config=STREAMING)

    with events_of(triton, name, {"text": "a b", "count": 1, "temperature": 2}) as events:
        assert [(event["token"], event["score"]) for event in events] == [("a", 2), ("b", 2)]


def test_statistics_count_a_stream_as_one_inference(triton, name, counter):
    bind_stream(triton, name, counter, one_by_one(decoupled=True))
    for number in (0, 3):
        streamed(triton, name, number)

    statistics = wait_until(lambda: (found := statistics_of(triton, name))["inference_count"] == 2 and found)
    assert statistics["execution_count"] == 2
    assert statistics["inference_stats"]["success"]["count"] == 2


def test_a_worker_that_waits_for_its_client_delays_no_other(triton, name, counter):
    """A client that does not read what it is sent."""
    bind_stream(triton, name, counter, one_by_one(decoupled=True))
    with stream_to(triton) as stream, events_of(triton, name, {"x": 20_000}):
        assert values_of(stream.send(name, 100).replies()) == [*range(100), None]
