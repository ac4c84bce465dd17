"""Clients of streams, against bound models."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from client_kinds import url_of
from serving import bind_floats, wait_until

from pytriton.client import (
    DecoupledModelClient,
    PyTritonClientInferenceServerError,
    PyTritonClientModelUnavailableError,
)
from pytriton.model_config import ModelConfig

DECOUPLED = ModelConfig(decoupled=True)


def count_requests(requests):
    """Counts from 0 up to the request's number, a response for each."""
    most = max(int(request["x"][0, 0]) for request in requests)
    for number in range(most):
        yield [{"y": np.float32([[number]])} for _ in requests]


def test_other_methods_of_blocking_clients(triton, name):
    bind_floats(triton, name, lambda requests: [{"y": each["x"]} for each in requests], config=DECOUPLED)
    with DecoupledModelClient(url_of(triton, "grpc"), name, lazy_init=False) as client:
        client.wait_for_server(10)
        client.wait_for_model(10)
        assert client.is_batching_supported
        assert client.model_config.decoupled
        assert [response["y"].tolist() for response in client.infer_sample([7])] == [[7]]
        with DecoupledModelClient.from_existing_client(client) as other:
            assert len(list(other.infer_batch([[1], [2]]))) == 1
    with pytest.raises(PyTritonClientModelUnavailableError):
        DecoupledModelClient(url_of(triton, "grpc"), "no-such-model", lazy_init=False, init_timeout_s=0.4)


def test_a_callable_with_one_response(triton, name, streamer):
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
    """Binds a model that responds without a pause; returns an event that it sets at the end of a stream."""
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


@pytest.mark.slow
def test_a_stream_can_be_abandoned_just_as_a_response_arrives(triton, name, streamer):
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
