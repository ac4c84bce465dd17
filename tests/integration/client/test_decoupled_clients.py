"""Clients of streams, against a server that the tests script."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import queue
import threading
import time
from collections.abc import AsyncGenerator, Generator

import numpy as np
import pytest
from peers import HOST
from serving import at_once
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
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
    RetryPolicy,
    base,
)
from pytriton.client.decoupled import Responses


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


@pytest.mark.parametrize("method", ["infer_sample", "infer_batch"])
def test_responses_are_used_like_a_generator(method):
    ended = threading.Event()
    with streaming_server(endless(ended)) as (url, _), DecoupledModelClient(url, "floats") as client:
        infer = getattr(client, method)
        value = [1] if method == "infer_sample" else [[1]]
        with contextlib.closing(infer(value)) as responses:
            assert responses.send(None)["y"].ravel().tolist() == [0]
            assert next(responses)["y"].ravel().tolist() == [1]
            assert isinstance(responses, Generator)
        assert ended.wait(10)
        with pytest.raises(StopIteration):
            responses.send(None)
        ended.clear()
        responses = infer(value)
        next(responses)
        with pytest.raises(KeyError, match="mine"):
            responses.throw(KeyError("mine"))
        assert ended.wait(10)
        responses.close()


@pytest.mark.parametrize("method", ["infer_sample", "infer_batch"])
def test_asynchronous_responses_are_used_like_a_generator(method):
    ended = threading.Event()

    async def read(url):
        async with AsyncioDecoupledModelClient(url, "floats") as client:
            infer = getattr(client, method)
            value = [1] if method == "infer_sample" else [[1]]
            async with contextlib.aclosing(infer(value)) as responses:
                assert (await responses.asend(None))["y"].ravel().tolist() == [0]
                assert (await anext(responses))["y"].ravel().tolist() == [1]
                assert isinstance(responses, AsyncGenerator)
            assert await asyncio.to_thread(ended.wait, 10)
            assert [each async for each in responses] == []
            ended.clear()
            responses = infer(value)
            await anext(responses)
            with pytest.raises(KeyError, match="mine"):
                await responses.athrow(KeyError("mine"))
            assert await asyncio.to_thread(ended.wait, 10)

    with streaming_server(endless(ended)) as (url, _):
        asyncio.run(read(url))


def test_dropping_an_iterator_cancels_the_stream_on_the_server():
    ended = threading.Event()
    with streaming_server(endless(ended)) as (url, _), DecoupledModelClient(url, "floats") as client:
        responses = client.infer_sample([1])
        next(responses)
        del responses
        gc.collect()
        assert ended.wait(10)


def test_cancelling_a_task_cancels_its_stream_on_the_server():
    begun, ended = threading.Event(), threading.Event()

    async def send_request(url):
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
        asyncio.run(send_request(url))


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
        replies = [[response["y"][0] for response in stream] for stream in streams]
    assert replies == [[number * factor for number in range(5)] for factor in range(4)]


def test_several_streams_at_once_in_several_threads_and_tasks():
    with streaming_server(count) as (url, _):
        with DecoupledModelClient(url, "floats") as client:
            assert at_once(8, lambda n: len(list(client.infer_sample([n])))) == list(range(8))

        async def send_request():
            async with AsyncioDecoupledModelClient(url, "floats") as client:

                async def length(number):
                    return len([response async for response in client.infer_sample([number])])

                return await asyncio.gather(*[length(number) for number in range(30)])

        assert asyncio.run(send_request()) == list(range(30))


def test_the_request_is_sent_before_the_iteration_starts():
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
            with pytest.raises(PyTritonClientInferenceServerError, match="responded: the model gave up") as caught:
                client.all([1])
            assert caught.value.failure is Failure.REFUSED


def test_responses_before_an_error_are_not_lost():
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
def test_the_timeout_applies_to_each_response(streamer, before):
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


def test_by_default_a_stream_may_be_slow(streamer, monkeypatch):
    monkeypatch.setattr(base, "DEFAULT_INFERENCE_TIMEOUT_S", 0.2)

    def respond(row, context):
        for number in range(2):
            time.sleep(0.5)
            yield [number]

    with streaming_server(respond) as (url, _):
        with streamer(url) as client:
            assert client.all([1]) == [[0], [1]]
        with streamer(url, inference_timeout_s=0.2) as client, pytest.raises(PyTritonClientTimeoutError):
            client.all([1])


def test_a_server_that_exits_during_a_stream(streamer):
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


def test_no_server_is_running(streamer):
    with streaming_server(count) as (url, _), ModelClient(url, "floats") as other:
        config = other.model_config
    known = {"model_config": config, "ensure_model_is_ready": False}
    with streamer(f"grpc://{HOST}:1", **known) as client:
        with pytest.raises(PyTritonClientInferenceServerError, match="No server can be reached") as caught:
            client.all([1])
        assert caught.value.failure is Failure.UNREACHABLE


def test_another_server_is_tried_if_one_is_unreachable(streamer):
    with streaming_server(count) as (url, _), streamer([f"grpc://{HOST}:1", url], init_timeout_s=10) as client:
        for _ in range(3):
            assert client.all([2]) == [[0], [1]]


def test_a_stream_that_has_not_begun_is_retried(streamer):
    retry = RetryPolicy(attempts=3, pause_s=0.05, jitter=0)
    with streaming_server(count) as (url, _), ModelClient(url, "floats") as other:
        known = {"model_config": other.model_config, "ensure_model_is_ready": False}
    with streamer(f"grpc://{HOST}:1", retry=retry, **known) as client:
        started = time.monotonic()
        with pytest.raises(PyTritonClientInferenceServerError):
            client.all([1])
        assert time.monotonic() - started >= 0.15


def test_inputs_are_checked_before_the_request_is_sent(streamer):
    with streaming_server(count) as (url, _), streamer(url) as client:
        with pytest.raises(PyTritonClientValueError, match=r"takes 'x': FP32 \(-1,\)"):
            client.all(z=[1])
        with pytest.raises(PyTritonClientValueError, match="has 9 rows, and model 'floats' takes 8"):
            client.all(np.zeros((9, 1), np.float32), batch=True)


def test_http_is_refused(streamer):
    with pytest.raises(PyTritonClientValueError, match=r"only over gRPC.*use grpc://localhost"):
        streamer("localhost:8000")


def test_each_client_names_the_right_client_for_the_model(streamer):
    with (
        streaming_server(count, decoupled=False) as (url, _),
        streamer(url) as client,
        pytest.raises(
            PyTritonClientValueError, match=f"sends one response to each request; use {streamer.of_one_response}"
        ),
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

        async def send_request():
            async with AsyncioModelClient(url, "floats") as client:
                await client.infer_batch([[1]])

        with pytest.raises(PyTritonClientInferenceServerError, match="use AsyncioDecoupledModelClient"):
            asyncio.run(send_request())
