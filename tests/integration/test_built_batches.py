"""Batches of models whose batcher has default settings: the backend builds them, and Triton has no batcher."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
import tritonclient.grpc as grpc
from footprint import sleeps_of
from gates import Gate, gathers, is_pending, row
from serving import (
    FLOATS_IN,
    FLOATS_OUT,
    Background,
    bind_floats,
    request_json,
    running_triton,
    samples_of,
    send_floats,
    server_of,
    wait_until,
)

from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor


def of_shape(number, *shape):
    return np.full(shape, number, np.float32)


def batches_behind_a_busy_callable(triton, client, name, sent, config):
    """The shapes of the requests in each batch: the first request is served while the others come in this order."""
    gate = Gate()
    shapes = []

    def infer(requests):
        shapes.append([request["x"].shape for request in requests])
        return gate(requests)

    bind_floats(triton, name, infer, config=config)
    requests = []
    for each in sent:
        requests.append(Background(lambda x=each: client.infer(name, {"x": x})["y"]))
        if len(requests) == 1:
            assert gate.entered.wait(30)
        wait_until(lambda: is_pending(triton, name, len(requests) - 1))
    gate.opened.set()
    for request, x in zip(requests, sent, strict=True):
        request.finish()
        assert np.array_equal(request.result, x)
    return shapes


def test_requests_are_batched_in_order_up_to_the_largest_batch(triton, grpc_client, name):
    sent = [of_shape(number, rows, 3) for number, rows in enumerate([1, 3, 2, 1, 4, 1, 1])]

    def batches():
        shapes = batches_behind_a_busy_callable(triton, grpc_client, name, sent, ModelConfig(max_batch_size=4))
        return [[shape[0] for shape in each] for each in shapes]

    assert gathers([[1], [3], [2, 1], [4], [1, 1]], batches)


def test_requests_of_different_shapes_are_in_different_batches(triton, grpc_client, name):
    sent = [of_shape(number, 1, size) for number, size in enumerate([1, 2, 2, 3, 3, 2])]

    def batches():
        shapes = batches_behind_a_busy_callable(triton, grpc_client, name, sent, ModelConfig(max_batch_size=16))
        return [[shape[1] for shape in each] for each in shapes]

    assert gathers([[1], [2, 2], [3, 3], [2]], batches)


def test_requests_without_an_optional_input_are_in_another_batch(triton, grpc_client, name):
    def batches():
        gate = Gate()
        received = []

        def infer(requests):
            received.append([sorted(request) for request in requests])
            return gate(requests)

        optional = Tensor(name="w", shape=(1,), dtype=np.float32, optional=True)
        inputs, config = [*FLOATS_IN, optional], ModelConfig(max_batch_size=16)
        triton.bind(name, infer, inputs=inputs, outputs=FLOATS_OUT, config=config)
        first = Background(lambda: grpc_client.infer(name, {"x": row(0)}))
        assert gate.entered.wait(30)
        waiting = []
        for names in ("x", "xw", "xw", "x"):
            waiting.append(Background(lambda names=names: grpc_client.infer(name, {each: row(1) for each in names})))
            wait_until(lambda: is_pending(triton, name, len(waiting)))
        gate.opened.set()
        for request in (first, *waiting):
            request.finish()
        return received

    assert gathers([[["x"]], [["x"]], [["w", "x"], ["w", "x"]], [["x"]]], batches)


def test_requests_that_wait_for_a_coroutine_become_one_batch(triton, grpc_client, name):
    def batches():
        entered, opened = threading.Event(), threading.Event()
        sizes = []

        @batch
        async def infer(x):
            sizes.append(len(x))
            entered.set()
            assert opened.wait(30)  # the loop takes no other batch meanwhile
            await asyncio.sleep(0)
            return {"y": x}

        bind_floats(triton, name, infer, config=ModelConfig(max_batch_size=16))
        requests = [Background(lambda: grpc_client.infer(name, {"x": row(0)}))]
        assert entered.wait(30)
        requests.append(Background(lambda: grpc_client.infer(name, {"x": row(1)})))
        wait_until(lambda: samples_of(triton, "pytriton_requests_in_flight", model=name, version="1") == {(): 2})
        for number in range(2, 9):
            requests.append(Background(lambda number=number: grpc_client.infer(name, {"x": row(number)})))
        wait_until(lambda: is_pending(triton, name, 7))
        opened.set()
        for number, request in enumerate(requests):
            request.finish()
            assert request.result["y"].item() == number
        return sizes

    assert gathers([1, 1, 7], batches)


def test_instances_build_their_own_batches(triton, grpc_client, name):
    gates = [Gate(), Gate()]
    bind_floats(triton, name, gates, config=ModelConfig(max_batch_size=4))
    requests = []
    for number, gate in enumerate(gates):
        requests.append(Background(lambda number=number: grpc_client.infer(name, {"x": row(number)})))
        wait_until(lambda number=number: sum(gate.entered.is_set() for gate in gates) == number + 1)
    for number in range(2, 10):
        requests.append(Background(lambda number=number: grpc_client.infer(name, {"x": row(number)})))
    wait_until(lambda: is_pending(triton, name, 8))
    for gate in gates:
        gate.opened.set()
    for number, request in enumerate(requests):
        request.finish()
        assert request.result["y"].item() == number

    batches = [each for gate in gates for each in gate.batches]
    assert sorted(number for each in batches for (number,) in each) == list(range(10))
    assert len(batches) < 10


def test_the_server_starts_no_batcher(triton, name):
    def threads_of(model, config):
        before = sleeps_of(server_of(triton)).keys()
        bind_floats(triton, model, lambda requests: [[request["x"]] for request in requests], config=config)
        assert send_floats(triton, model, [4]) == [4]
        return len(sleeps_of(server_of(triton)).keys() - before)

    threads_of(f"{name}_other", ModelConfig())  # what the server starts with its first model and request runs now
    batcher = DynamicBatcher(preferred_batch_size=[4])

    with_batcher = threads_of(f"{name}_preferred", ModelConfig(max_batch_size=16, batcher=batcher))

    assert threads_of(name, ModelConfig(max_batch_size=16)) == with_batcher - 1


@pytest.mark.parametrize("media_types", [{}, {"x": "image/*"}, {"a": "image/png", "x": "image/*", "z": "audio/wav"}])
def test_the_configuration_equals_that_of_a_model_with_a_batcher(triton, monkeypatch, name, media_types):
    def configuration_in(server):
        inputs = [Tensor(name=each, shape=(1,), dtype=bytes, media_type=media_types.get(each)) for each in "axz"]
        server.bind(name, lambda requests: requests, inputs, [Tensor(name="y", shape=(1,), dtype=bytes)])
        server.run()
        status, configuration = request_json(server, "GET", f"/v2/models/{name}/config")
        assert status == 200
        return configuration

    built = configuration_in(triton)
    monkeypatch.setenv("PYTRITON_BATCHING", "0")
    with running_triton() as other:
        assert configuration_in(other) == built
    with grpc.InferenceServerClient(f"127.0.0.1:{triton.config.grpc_port}") as client:
        shown = client.get_model_config(name).config
    assert list(shown.dynamic_batching.preferred_batch_size) == [4]
    assert "pytriton_builds_batches" not in shown.parameters
    assert built["dynamic_batching"]["preferred_batch_size"] == [4]
