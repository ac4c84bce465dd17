"""Models that answer with any number of responses."""

from __future__ import annotations

import asyncio
import gc
import queue
import threading
import time

import numpy as np
import pytest
from asking import url_of
from peers import HOST
from serving import at_once, bind_floats, wait_until
from stream_server import streaming_server

from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    Failure,
    FuturesModelClient,
    ModelClient,
    PyTritonClientClosedError,
    PyTritonClientInferenceServerError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
    RetryPolicy,
)
from pytriton.client.decoupled import Responses
from pytriton.model_config import ModelConfig

DECOUPLED = ModelConfig(decoupled=True)


def count_requests(requests):
    """Counts from 0 up to the request's number, a response for each."""
    most = max(int(request["x"][0, 0]) for request in requests)
    for number in range(most):
        yield [{"y": np.float32([[number]])} for _ in requests]


class Blocking:
    """A blocking client of streams, and what one does with it."""

    def __init__(self, url, model="floats", **arguments):
        self.client = DecoupledModelClient(url, model, **arguments)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()

    def all(self, *inputs, batch=False, **options):
        ask = self.client.infer_batch if batch else self.client.infer_sample
        return [answer["y"].tolist() for answer in ask(*inputs, **options)]

    def first(self, count, *inputs, **options):
        answers = []
        for answer in self.client.infer_sample(*inputs, **options):
            answers.append(answer["y"].tolist())
            if len(answers) == count:
                break
        return answers


class Asyncio(Blocking):
    """The same with a client for asyncio, a new one for each call."""

    def __init__(self, url, model="floats", **arguments):
        self.client = None
        self._arguments = (url, model), arguments
        AsyncioDecoupledModelClient(url, model, **arguments)

    def __exit__(self, *_):
        pass

    def all(self, *inputs, batch=False, **options):
        async def ask():
            async with self._made() as client:
                responses = (client.infer_batch if batch else client.infer_sample)(*inputs, **options)
                return [answer["y"].tolist() async for answer in responses]

        return asyncio.run(ask())

    def first(self, count, *inputs, **options):
        async def ask():
            answers = []
            async with self._made() as client:
                async for answer in client.infer_sample(*inputs, **options):
                    answers.append(answer["y"].tolist())
                    if len(answers) == count:
                        break
                await asyncio.to_thread(self.after_the_loop)
            return answers

        return asyncio.run(ask())

    def after_the_loop(self):
        pass

    def _made(self):
        (url, model), arguments = self._arguments
        return AsyncioDecoupledModelClient(url, model, **arguments)


@pytest.fixture(params=[Blocking, Asyncio], ids=["blocking", "asyncio"])
def streamer(request):
    return request.param


def count(row, context):
    for number in range(int(row[0])):
        yield [number]


def endless(ended):
    """Responds until the stream is cancelled; then sets the event."""

    def respond(row, context):
        context.add_callback(ended.set)
        number = 0
        while context.is_active():
            yield [number]
            number += 1
            time.sleep(0.001)

    return respond


@pytest.mark.parametrize("number", [0, 1, 2, 100])
def test_all_responses_come_in_order(streamer, number):
    with streaming_server(count) as (url, _), streamer(url) as client:
        assert client.all([number]) == [[each] for each in range(number)]
        assert client.all([[number]], batch=True) == [[[each]] for each in range(number)]


def test_leaving_the_loop_early_cancels_the_stream_on_the_server(streamer):
    ended = threading.Event()
    with streaming_server(endless(ended)) as (url, _), streamer(url) as client:
        client.after_the_loop = lambda: ended.wait(10)
        assert client.first(3, [1]) == [[0], [1], [2]]
        assert ended.wait(10)


def test_closing_an_iterator_cancels_the_stream_on_the_server():
    ended = threading.Event()
    with streaming_server(endless(ended)) as (url, _), DecoupledModelClient(url, "floats") as client:
        responses = client.infer_sample([1])
        next(responses)
        assert isinstance(responses, Responses)
        responses.close()
        assert ended.wait(10)
        assert list(responses) == []
        ended.clear()
        with client.infer_sample([1]) as responses:
            next(responses)
        assert ended.wait(10)


def test_forgetting_an_iterator_cancels_the_stream_on_the_server():
    ended = threading.Event()
    with streaming_server(endless(ended)) as (url, _), DecoupledModelClient(url, "floats") as client:
        responses = client.infer_sample([1])
        next(responses)
        del responses
        gc.collect()
        assert ended.wait(10)


def test_cancelling_a_task_cancels_its_stream_on_the_server():
    begun, ended = threading.Event(), threading.Event()

    async def ask(url):
        async with AsyncioDecoupledModelClient(url, "floats") as client:

            async def read():
                async for _ in client.infer_sample([1]):
                    begun.set()

            task = asyncio.ensure_future(read())
            assert await asyncio.to_thread(begun.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(ended.wait, 10)

    with streaming_server(endless(ended)) as (url, _):
        asyncio.run(ask(url))


def test_closing_the_client_ends_its_streams(streamer):
    ended = threading.Event()
    with streaming_server(endless(ended)) as (url, _):
        client = DecoupledModelClient(url, "floats")
        responses = client.infer_sample([1])
        next(responses)
        client.close()
        with pytest.raises(PyTritonClientClosedError):
            for _ in range(100_000):
                next(responses)
        assert ended.wait(10)
        with pytest.raises(PyTritonClientClosedError):
            client.infer_sample([1])


def test_several_streams_at_once_in_one_thread():
    together = threading.Barrier(4)

    def respond(row, context):
        together.wait(30)
        yield from ([number * row[0]] for number in range(5))

    with streaming_server(respond) as (url, _), DecoupledModelClient(url, "floats") as client:
        streams = [client.infer_sample([factor]) for factor in range(4)]
        answers = [[answer["y"][0] for answer in stream] for stream in streams]
    assert answers == [[number * factor for number in range(5)] for factor in range(4)]


def test_several_streams_at_once_in_several_threads_and_tasks():
    with streaming_server(count) as (url, _):
        with DecoupledModelClient(url, "floats") as client:
            assert at_once(8, lambda n: len(list(client.infer_sample([n])))) == list(range(8))

        async def ask():
            async with AsyncioDecoupledModelClient(url, "floats") as client:

                async def length(number):
                    return len([answer async for answer in client.infer_sample([number])])

                return await asyncio.gather(*[length(number) for number in range(30)])

        assert asyncio.run(ask()) == list(range(30))


def test_the_request_is_sent_before_the_first_response_is_asked_for():
    arrived = threading.Event()

    def respond(row, context):
        arrived.set()
        yield row

    with streaming_server(respond) as (url, _), DecoupledModelClient(url, "floats") as client:
        responses = client.infer_sample([1])
        assert arrived.wait(10)
        assert len(list(responses)) == 1


def test_an_error_in_the_middle_of_a_stream(streamer):
    def respond(row, context):
        yield [1]
        yield "the model gave up"

    with streaming_server(respond) as (url, _), streamer(url) as client:
        for _ in range(2):
            with pytest.raises(PyTritonClientInferenceServerError, match="answered: the model gave up") as caught:
                client.all([1])
            assert caught.value.failure is Failure.REFUSED


def test_what_came_before_an_error_is_not_lost():
    def respond(row, context):
        yield [1]
        yield [2]
        yield "no"

    with streaming_server(respond) as (url, _), DecoupledModelClient(url, "floats") as client:
        responses = client.infer_sample([1])
        assert [next(responses)["y"][0] for _ in range(2)] == [1, 2]
        with pytest.raises(PyTritonClientInferenceServerError):
            next(responses)
        assert list(responses) == []


@pytest.mark.parametrize("before", [0, 3])
def test_the_timeout_is_for_each_response(streamer, before):
    ended = threading.Event()

    def respond(row, context):
        context.add_callback(ended.set)
        for number in range(before):
            time.sleep(0.25)
            yield [number]
        ended.wait(30)

    with streaming_server(respond) as (url, _), streamer(url, inference_timeout_s=0.6) as client:
        started = time.monotonic()
        with pytest.raises(PyTritonClientTimeoutError, match=r"within 0\.6 s"):
            client.all([1])
        assert 0.6 + before * 0.25 <= time.monotonic() - started < 5
        assert ended.wait(10)
        ended.clear()
        with pytest.raises(PyTritonClientTimeoutError, match=r"within 0\.1 s"):
            client.all([1], timeout_s=0.1)


def test_a_server_that_ends_in_the_middle_of_a_stream(streamer):
    stops = queue.SimpleQueue()

    def respond(row, context):
        yield [1]
        threading.Thread(target=stops.get()).start()
        while context.is_active():
            time.sleep(0.01)

    with streaming_server(respond) as (url, stop), streamer(url) as client:
        stops.put(stop)
        with pytest.raises(PyTritonClientInferenceServerError) as caught:
            client.all([1])
    assert caught.value.failure in (Failure.LOST, Failure.BUSY), caught.value


def test_nobody_listens(streamer):
    with streaming_server(count) as (url, _), ModelClient(url, "floats") as other:
        config = other.model_config
    known = {"model_config": config, "ensure_model_is_ready": False}
    with streamer(f"grpc://{HOST}:1", **known) as client:
        with pytest.raises(PyTritonClientInferenceServerError, match="No server can be reached") as caught:
            client.all([1])
        assert caught.value.failure is Failure.UNREACHABLE


def test_another_server_is_asked_where_one_cannot_be_reached(streamer):
    with streaming_server(count) as (url, _), streamer([f"grpc://{HOST}:1", url], init_timeout_s=10) as client:
        for _ in range(3):
            assert client.all([2]) == [[0], [1]]


def test_a_stream_that_was_not_begun_is_tried_again(streamer):
    retry = RetryPolicy(attempts=3, pause_s=0.05, jitter=0)
    with streaming_server(count) as (url, _), ModelClient(url, "floats") as other:
        known = {"model_config": other.model_config, "ensure_model_is_ready": False}
    with streamer(f"grpc://{HOST}:1", retry=retry, **known) as client:
        started = time.monotonic()
        with pytest.raises(PyTritonClientInferenceServerError):
            client.all([1])
        assert time.monotonic() - started >= 0.15


def test_inputs_are_checked_before_anything_is_sent(streamer):
    with streaming_server(count) as (url, _), streamer(url) as client:
        with pytest.raises(PyTritonClientValueError, match=r"takes 'x': FP32 \(-1,\)"):
            client.all(z=[1])
        with pytest.raises(PyTritonClientValueError, match="has 9 rows, and model 'floats' takes 8"):
            client.all(np.zeros((9, 1), np.float32), batch=True)


def test_http_is_refused(streamer):
    with pytest.raises(PyTritonClientValueError, match=r"over gRPC alone.*use grpc://localhost"):
        streamer("localhost:8000")


def test_each_client_names_the_one_that_fits_the_model(streamer):
    right = {Blocking: "ModelClient", Asyncio: "AsyncioModelClient"}[streamer]
    with (
        streaming_server(count, decoupled=False) as (url, _),
        streamer(url) as client,
        pytest.raises(PyTritonClientValueError, match=f"answers each request once; use {right}"),
    ):
        client.all([1])
    with streaming_server(count) as (url, _):
        with ModelClient(url, "floats") as client:
            with pytest.raises(PyTritonClientInferenceServerError, match="use DecoupledModelClient"):
                client.infer_sample([1])
            assert client.model_config.decoupled
        with (
            FuturesModelClient(url, "floats") as client,
            pytest.raises(PyTritonClientInferenceServerError, match="use AsyncioDecoupledModelClient"),
        ):
            client.infer_sample([1]).result(30)

        async def ask():
            async with AsyncioModelClient(url, "floats") as client:
                await client.infer_batch([[1]])

        with pytest.raises(PyTritonClientInferenceServerError, match="use AsyncioDecoupledModelClient"):
            asyncio.run(ask())


def test_what_blocking_clients_have_besides(triton, name):
    bind_floats(triton, name, lambda requests: [{"y": each["x"]} for each in requests], config=DECOUPLED)
    with DecoupledModelClient(url_of(triton, "grpc"), name, lazy_init=False) as client:
        client.wait_for_server(10)
        client.wait_for_model(10)
        assert client.is_batching_supported
        assert client.model_config.decoupled
        assert [answer["y"].tolist() for answer in client.infer_sample([7])] == [[7]]
        with DecoupledModelClient.from_existing_client(client) as other:
            assert len(list(other.infer_batch([[1], [2]]))) == 1
    with pytest.raises(PyTritonClientModelUnavailableError):
        DecoupledModelClient(url_of(triton, "grpc"), "no-such-model", lazy_init=False, init_timeout_s=0.4)


def test_a_callable_that_answers_once(triton, name, streamer):
    bind_floats(triton, name, lambda requests: [{"y": 2 * each["x"]} for each in requests], config=DECOUPLED)
    with streamer(url_of(triton, "grpc"), name) as client:
        assert client.all([1, 2]) == [[2, 4]]
        assert client.all([[1], [2]], batch=True) == [[[2], [4]]]


def test_an_error_of_a_bound_model(triton, name, streamer):
    def fail(requests):
        raise ValueError("no such luck")

    bind_floats(triton, name, fail, config=DECOUPLED)
    with (
        streamer(url_of(triton, "grpc"), name) as client,
        pytest.raises(PyTritonClientInferenceServerError, match="ValueError: no such luck"),
    ):
        client.all([1])


@pytest.mark.parametrize("number", [0, 1, 5, 100])
def test_a_generator_is_bound(triton, name, streamer, number):
    bind_floats(triton, name, count_requests, config=DECOUPLED)
    with streamer(url_of(triton, "grpc"), name) as client:
        assert client.all([number]) == [[each] for each in range(number)]


def bind_endless(triton, name):
    """Binds a model that answers without a pause; returns an event that it sets at the end of a stream."""
    ended = threading.Event()

    def endless_requests(requests):
        try:
            number = 0
            while True:
                yield [{"y": np.float32([[number]])} for _ in requests]
                number += 1
        finally:
            ended.set()

    bind_floats(triton, name, endless_requests, config=DECOUPLED)
    return ended


def test_leaving_the_loop_early_ends_a_bound_generator(triton, name, streamer):
    ended = bind_endless(triton, name)
    with streamer(url_of(triton, "grpc"), name) as client:
        client.after_the_loop = lambda: ended.wait(30)
        assert client.first(3, [1]) == [[0], [1], [2]]
        assert ended.wait(30)


def test_a_stream_can_be_left_in_the_moment_in_which_a_response_comes(triton, name, streamer):
    ended = bind_endless(triton, name)
    for _ in range(10):
        ended.clear()
        with streamer(url_of(triton, "grpc"), name) as client:
            client.first(3, [1])
            assert ended.wait(10)


def test_threads_of_streams_end(triton, name):
    bind_floats(triton, name, lambda requests: [{"y": each["x"]} for each in requests], config=DECOUPLED)
    with DecoupledModelClient(url_of(triton, "grpc"), name) as client:
        list(client.infer_sample([1]))  # the model has its thread from now on
    before = threading.active_count()
    for _ in range(5):
        with DecoupledModelClient(url_of(triton, "grpc"), name) as client:
            list(client.infer_sample([1]))
            next(client.infer_sample([1]))
    client = DecoupledModelClient(url_of(triton, "grpc"), name)
    list(client.infer_sample([1]))
    del client
    gc.collect()
    wait_until(lambda: threading.active_count() <= before)
