"""Streams: any number of responses to a request, sent as they are made."""

from __future__ import annotations

import asyncio
import functools
import threading

import numpy as np
import pytest
from serving import (
    FLOATS_IN,
    FLOATS_OUT,
    InferenceServerException,
    at_once,
    bind_floats,
    infer_json,
    json_floats,
    metrics_of,
    statistics_of,
    wait_until,
)
from streaming import (
    STREAMING,
    Doors,
    answers,
    bind_stream,
    events_of,
    number_of,
    one_by_one,
    row,
    stream_to,
    streamed,
    together,
)

from pytriton.decorators import batch
from pytriton.exceptions import PyTritonModelConfigError
from pytriton.model_config import ModelConfig, Tensor
from pytriton.proxy.types import Response

TEXT_IN = [Tensor(name="text", shape=(1,), dtype=bytes), Tensor(name="count", shape=(1,), dtype=np.int32)]
TEXT_OUT = [Tensor(name="token", shape=(1,), dtype=bytes), Tensor(name="score", shape=(1,), dtype=np.float64)]


def count(requests):
    """Counts to the number that the request brings."""
    for value in range(number_of(requests)):
        yield answers(requests, value)


async def count_async(requests):
    for value in range(number_of(requests)):
        await asyncio.sleep(0)
        yield answers(requests, value)


COUNTERS = {"generator": count, "async_generator": count_async}


@pytest.fixture(params=COUNTERS)
def counter(request):
    """A generator function and an async one in turn, which do the same."""
    return COUNTERS[request.param]


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
            yield answers(requests, value)

    async def async_generator(self, requests):
        for value in range(number_of(requests)):
            assert await asyncio.to_thread(self._gates.acquire, timeout=30)
            self.passed += 1
            yield answers(requests, value)


def values_of(replies):
    return [reply.y for reply in replies]


def by_id(replies):
    """What each request was answered with, the end without data as None."""
    return {
        each: [reply.y for reply in replies if reply.id == each] for each in sorted({reply.id for reply in replies})
    }


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


def test_a_client_that_wants_no_empty_end_gets_responses_only(triton, name, counter):
    bind_stream(triton, name, counter)
    with stream_to(triton) as stream:
        stream.send(name, 2, enable_empty_final_response=False)
        stream.send(name, 1, enable_empty_final_response=False)

        replies = [stream.reply() for _ in range(3)]

    assert sorted(values_of(replies)) == [0, 0, 1]


def last_with_data(requests):
    yield answers(requests, 1)
    yield [Response(each, final=True) for each in answers(requests, 2)]


async def last_with_data_async(requests):
    for step in last_with_data(requests):
        yield step


def last_without_data(requests):
    yield answers(requests, 1)
    yield [Response({}, final=True) for _ in requests]
    yield answers(requests, 2)


async def last_without_data_async(requests):
    for step in last_without_data(requests):
        yield step


@pytest.mark.parametrize("infer_func", [last_with_data, last_with_data_async])
def test_a_response_that_says_so_is_the_last(triton, name, infer_func):
    bind_stream(triton, name, infer_func)

    assert streamed(triton, name, 1) == ([1, 2], [False, True])


@pytest.mark.parametrize("infer_func", [last_without_data, last_without_data_async])
def test_an_end_without_data_ends_a_request_and_the_rest_is_not_sent(triton, name, infer_func):
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


def test_an_array_that_is_used_again_for_the_next_step_has_been_sent(triton, name):
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


def test_only_the_outputs_that_the_client_wants_are_sent(triton, name):
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


def fail_in_mid_stream(requests):
    yield answers(requests, 1)
    yield answers(requests, 2)
    raise ZeroDivisionError("the sky fell")


async def fail_in_mid_stream_async(requests):
    yield answers(requests, 1)
    yield answers(requests, 2)
    await asyncio.sleep(0)
    raise ZeroDivisionError("the sky fell")


@pytest.mark.parametrize("infer_func", [fail_in_mid_stream, fail_in_mid_stream_async])
def test_an_error_in_mid_stream_arrives_after_what_was_sent(triton, name, infer_func, caplog):
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
def test_an_error_before_the_first_response_is_the_only_answer(triton, name, infer_func):
    bind_stream(triton, name, infer_func)
    error = f"model '{name}': ZeroDivisionError: the sky fell"

    assert streamed(triton, name, 1) == ([error], [True])
    with events_of(triton, name, {"x": 1}) as events:
        assert list(events) == [{"error": error}]
        assert events.response.status >= 400


WRONG_STEPS = {
    "no list": (lambda requests: 7, "the inference callable returned an int, not a list with one response per request"),
    "too many": (lambda requests: [None, None], "the inference callable returned 2 responses to 1 requests"),
    "a wrong dtype": (lambda requests: [{"y": np.zeros((1, 1), np.int64)}], "output 'y' has dtype int64, but float32"),
    "a wrong rank": (lambda requests: [{"y": np.zeros(1, np.float32)}], "output 'y' has shape (1,), but 2 dimensions"),
    "an unknown output": (lambda requests: [{"w": requests[0]["x"]}], "returned an output 'w' that the model does"),
    "no array": (lambda requests: [{"y": 1}], "output 'y' is an int, not a NumPy array"),
    "nothing in it": (lambda requests: [{}], "did not return the output 'y'"),
}


@pytest.mark.parametrize("kind", WRONG_STEPS)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_step_that_is_no_answer_ends_the_stream_with_a_sentence(triton, name, kind, is_async):
    make, expected = WRONG_STEPS[kind]
    closed = []

    def steps(requests):
        try:
            yield answers(requests, 1)
            yield make(requests)
            yield answers(requests, 2)
        finally:
            closed.append(True)

    async def steps_async(requests):
        try:
            yield answers(requests, 1)
            yield make(requests)
            yield answers(requests, 2)
        finally:
            closed.append(True)

    bind_stream(triton, name, steps_async if is_async else steps)

    (first, error), _ = streamed(triton, name, 1)
    assert first == 1
    assert error.startswith(f"model '{name}': ") and expected in error
    assert closed == [True]


class Countdown:
    """Streams a batch: each request gets as many responses as it asks for, and ends when its own are done.

    Attributes:
        sizes: Requests of each batch.
    """

    def __init__(self, last="data"):
        self.sizes = []
        self._last = last

    def _item(self, request, step):
        wanted = int(request["x"].item())
        data = {"y": np.full_like(request["x"], step)}
        if step < wanted - 1:
            return data
        if step == wanted - 1:
            return Response(data, final=self._last == "data")
        if step == wanted:
            return {"data": None, "end": Response({}, final=True), "error": ValueError(f"{wanted}")}[self._last]
        return None

    def generator(self, requests):
        self.sizes.append(len(requests))
        for step in range(int(max(request["x"].item() for request in requests)) + 1):
            yield [self._item(request, step) for request in requests]

    async def async_generator(self, requests):
        for step in self.generator(requests):
            await asyncio.sleep(0)
            yield step


@pytest.mark.parametrize("kind", COUNTERS)
@pytest.mark.parametrize("last", ["data", "end"])
def test_requests_of_one_batch_are_streamed_together_and_each_ends_by_itself(triton, name, kind, last):
    countdown = Countdown(last)
    bind_stream(triton, name, getattr(countdown, kind), together(decoupled=True))
    with stream_to(triton) as stream:
        for number in (1, 5, 3):
            stream.send(name, number, request_id=f"{number}")
        replies = stream.replies(3)

    assert countdown.sizes == [3]
    end = [None] if last == "end" else []
    assert by_id(replies) == {f"{number}": [*range(number), *end] for number in (1, 3, 5)}
    assert [reply.id for reply in replies if reply.final] == ["1", "3", "5"]
    assert [reply.y for reply in replies if reply.y is not None] == [0, 0, 0, 1, 1, 2, 2, 3, 4]


@pytest.mark.parametrize("kind", COUNTERS)
def test_an_exception_in_a_step_ends_its_request_alone(triton, name, kind):
    countdown = Countdown("error")
    bind_stream(triton, name, getattr(countdown, kind), together(decoupled=True))

    def send(number):
        return streamed(triton, name, number)[0]

    assert at_once(3, lambda index: send(index + 1)) == [
        [*range(number), f"model '{name}': ValueError: {number}"] for number in (1, 2, 3)
    ]
    assert max(countdown.sizes) > 1


@pytest.mark.parametrize("kind", COUNTERS)
def test_an_error_in_mid_stream_reaches_those_of_its_batch_that_have_not_ended(triton, name, kind):
    sizes = []

    def fail(requests):
        sizes.append(len(requests))
        yield [
            Response(each, final=request["x"].item() == 1)
            for request, each in zip(requests, answers(requests, 1), strict=True)
        ]
        raise ZeroDivisionError("the sky fell")

    async def fail_async(requests):
        for step in fail(requests):
            yield step

    bind_stream(triton, name, {"generator": fail, "async_generator": fail_async}[kind], together(decoupled=True))
    with stream_to(triton) as one, stream_to(triton) as other:
        one.send(name, 1)
        other.send(name, 2)

        assert values_of(one.replies()) == [1]
        assert values_of(other.replies()) == [1, f"model '{name}': ZeroDivisionError: the sky fell"]
    assert sizes == [2]


def test_a_step_may_have_nothing_for_anybody(triton, name):
    async def rarely(requests):
        yield [None]
        yield answers(requests, 1)
        yield [None]

    bind_stream(triton, name, rarely)

    assert streamed(triton, name, 1) == ([1, None], [False, True])


def test_an_async_instance_has_many_streams_in_flight(triton, name):
    doors = Doors()

    async def infer(requests):
        yield answers(requests, 1)
        await doors.wait(number_of(requests))
        yield answers(requests, 2)

    bind_stream(triton, name, infer, one_by_one(decoupled=True))
    with stream_to(triton) as stream:
        for number in range(256):
            stream.send(name, number, request_id=f"{number}")
        wait_until(lambda: len(doors.entered) == 256)
        assert [stream.reply().y for _ in range(256)] == [1] * 256
        doors.open(*range(256))

        assert list(by_id(stream.replies(256)).values()) == [[2, None]] * 256


def test_a_stream_beyond_the_limit_waits_until_another_ends(triton, name):
    doors = Doors()

    async def infer(requests):
        await doors.wait(number_of(requests))
        yield answers(requests, 1)

    bind_stream(triton, name, infer, one_by_one(decoupled=True, max_in_flight=2))
    with stream_to(triton) as stream:
        for number in range(4):
            stream.send(name, number, request_id=f"{number}")
        wait_until(lambda: len(doors.entered) == 2)
        wait_until(lambda: metrics_of(triton, name)["nv_inference_pending_request_count"] == 2)
        assert len(doors.entered) == 2

        doors.open(doors.entered[1])
        assert {reply.id for reply in stream.replies()} == {f"{doors.entered[1]}"}
        wait_until(lambda: len(doors.entered) == 3)
        doors.open(*range(4))
        assert len(by_id(stream.replies(3))) == 3


def test_a_slow_generator_does_not_stop_its_neighbours(triton, name):
    gate = threading.Event()

    def infer(requests):
        if number_of(requests) < 0:
            yield answers(requests, -1)
            assert gate.wait(30)
        yield from count(requests)

    bind_stream(triton, name, infer, one_by_one(decoupled=True))
    with stream_to(triton) as slow:
        slow.send(name, -1)
        assert slow.reply().y == -1

        for _ in range(3):
            assert streamed(triton, name, 3)[0] == [0, 1, 2, None]
        assert not slow.has_reply()
        gate.set()
        assert slow.reply().final


def test_32_generators_run_at_the_same_time_by_default(triton, name):
    entered, gate = [], threading.Event()

    def infer(requests):
        entered.append(threading.get_ident())
        assert gate.wait(30)
        yield answers(requests, 1)

    bind_stream(triton, name, infer, one_by_one(decoupled=True))
    with stream_to(triton) as stream:
        for _ in range(34):
            stream.send(name, 1)
        wait_until(lambda: len(entered) == 32)
        wait_until(lambda: metrics_of(triton, name)["nv_inference_pending_request_count"] == 2)
        assert len(entered) == len(set(entered)) == 32
        gate.set()

        assert values_of(stream.replies(34)).count(1) == 34


def test_the_number_of_threads_of_generators_is_that_of_the_model(triton, name):
    entered, gate = [], threading.Semaphore(0)

    def infer(requests):
        entered.append(threading.get_ident())
        assert gate.acquire(timeout=30)
        yield answers(requests, 1)

    bind_stream(triton, name, infer, one_by_one(decoupled=True, max_in_flight=2))
    with stream_to(triton) as stream:
        for _ in range(4):
            stream.send(name, 1)
        wait_until(lambda: metrics_of(triton, name)["nv_inference_pending_request_count"] == 2)
        wait_until(lambda: len(entered) == 2)
        gate.release()
        assert values_of(stream.replies()) == [1, None]
        wait_until(lambda: len(entered) == 3)
        gate.release(3)
        stream.replies(3)
    assert len(set(entered)) == 2


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
        yield answers(requests, value)


class Steps:
    """An iterator that is no generator."""

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
def test_whatever_yields_is_streamed(triton, name, kind):
    bind_stream(triton, name, THAT_YIELD[kind])

    with stream_to(triton) as stream:
        for _ in range(2):
            assert values_of(stream.send(name, 3).replies()) == [0, 1, 2, None]


async def return_one(requests):
    await asyncio.sleep(0)
    return answers(requests, 1)


async def return_none(requests):
    return [None for _ in requests]


RETURNS = {
    "a function": (lambda requests: answers(requests, 1), [1]),
    "a function that answers with nothing": (lambda requests: [None for _ in requests], [None]),
    "a function that ends": (lambda requests: [Response({}, final=True) for _ in requests], [None]),
    "a coroutine": (return_one, [1]),
    "a coroutine that answers with nothing": (return_none, [None]),
}


@pytest.mark.parametrize("kind", RETURNS)
def test_what_returns_gives_one_response_or_none_on_a_decoupled_model(triton, name, kind):
    infer_func, expected = RETURNS[kind]
    bind_stream(triton, name, infer_func)

    assert streamed(triton, name, 1) == (expected, [True])


def test_a_plain_function_on_a_decoupled_model_takes_one_batch_at_a_time(triton, name):
    running = []

    def infer(requests):
        running.append(1)
        assert len(running) == 1
        threading.Event().wait(0.01)
        running.pop()
        return answers(requests, 1)

    bind_stream(triton, name, infer, one_by_one(decoupled=True))
    with stream_to(triton) as stream:
        for _ in range(8):
            stream.send(name, 1)
        assert values_of(stream.replies(8)) == [1] * 8


@pytest.mark.parametrize("kind", ["a method", "an async method", "an object", "an async object", "a partial"])
def test_what_yields_is_refused_on_a_model_that_is_not_decoupled(triton, name, kind):
    which = "an async generator function" if "async" in kind else "a generator function"
    with pytest.raises(PyTritonModelConfigError) as caught:
        bind_floats(triton, name, THAT_YIELD[kind])

    assert str(caught.value) == (
        f"Model '{name}': infer_func is {which}, which may answer a request with several responses; set "
        "ModelConfig(decoupled=True), or return the responses instead of yielding them."
    )


def test_a_function_that_returns_a_generator_on_a_model_that_is_not_decoupled_is_told(triton, name):
    bind_floats(triton, name, lambda requests: count(requests))

    status, answer = infer_json(triton, name, [json_floats([1])])
    assert status >= 400
    assert answer["error"].startswith(f"model '{name}': the inference callable returned a generator")


def test_a_single_response_of_a_decoupled_model_goes_to_generate(triton, name, counter):
    bind_stream(triton, name, counter)

    with events_of(triton, name, {"x": 1}, "generate") as answer:
        assert answer.json() == {"model_name": name, "model_version": "1", "y": 0}
    with events_of(triton, name, {"x": 2}, "generate") as answer:
        assert "exactly 1 response" in answer.json()["error"]


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
def test_strings_and_scalars_go_through_generate_stream(triton, name, infer_func, text):
    triton.bind(name, infer_func, TEXT_IN, TEXT_OUT, config=STREAMING)

    with events_of(triton, name, {"text": text, "count": 2}) as events:
        assert events.response.status == 200
        assert events.response.headers["Content-Type"].startswith("text/event-stream")
        received = list(events)

    head = {"model_name": name, "model_version": "1"}
    assert received == [head | {"token": f"{text} {number}", "score": number / 2} for number in range(2)]


def test_strings_and_scalars_go_through_generate(triton, name):
    triton.bind(name, talk_async, TEXT_IN, TEXT_OUT, config=STREAMING)

    with events_of(triton, name, {"text": "hello", "count": 1}, "generate") as answer:
        assert answer.json()["token"] == "hello 0"


def test_parameters_come_along_through_generate_stream(triton, name):
    async def tell(requests):
        temperature = requests[0].parameters["temperature"]
        for word in requests[0]["text"].item().split():
            yield [{"token": np.array([[word]], object), "score": np.array([[temperature]], np.float64)}]

    triton.bind(name, tell, TEXT_IN, TEXT_OUT, config=STREAMING)

    with events_of(triton, name, {"text": "a b", "count": 1, "temperature": 2}) as events:
        assert [(event["token"], event["score"]) for event in events] == [("a", 2), ("b", 2)]


def test_statistics_count_a_stream_as_one_inference(triton, name, counter):
    bind_stream(triton, name, counter, one_by_one(decoupled=True))
    for number in (0, 3):
        streamed(triton, name, number)

    statistics = wait_until(lambda: (found := statistics_of(triton, name))["inference_count"] == 2 and found)
    assert statistics["execution_count"] == 2
    assert statistics["inference_stats"]["success"]["count"] == 2


def test_a_worker_that_waits_for_its_client_holds_up_no_other(triton, name, counter):
    """A client that does not read what it is sent."""
    bind_stream(triton, name, counter, one_by_one(decoupled=True))
    with stream_to(triton) as stream, events_of(triton, name, {"x": 20_000}):
        assert values_of(stream.send(name, 100).replies()) == [*range(100), None]
