"""Bound models that call other models of the server through the Triton context."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import threading
import time

import numpy as np
import pytest
from bls_models import ROW, bind_caller, called
from footprint import Footprint, assert_same, settled
from serving import (
    NO_BATCHING,
    Background,
    Client,
    InferenceServerException,
    at_once,
    bind_floats,
    request_json,
    running_triton,
    send_floats,
    token_of,
    wait_until,
)
from streaming import bind_stream, streamed

from pytriton.decorators import batch, triton_context
from pytriton.exceptions import PyTritonInferenceError
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.model_config.datatypes import DATATYPES
from pytriton.proxy.services.client import current_client

pytestmark = pytest.mark.usefixtures("callees")


def test_a_model_calls_another(triton, name):
    bind_caller(
        triton, name, lambda context, requests: [context.infer("double", {"x": each["x"]}) for each in requests]
    )
    assert send_floats(triton, name, [1, 2, 3]) == [2, 4, 6]


def test_a_coroutine_calls_another_model(triton, name):
    async def send_request(context, requests):
        return [await context.ainfer("double", {"x": each["x"]}) for each in requests]

    bind_caller(triton, name, send_request)
    assert send_floats(triton, name, [1, 2, 3]) == [2, 4, 6]


def test_a_generator_calls_another_model(triton, name):
    @triton_context
    def send_request(requests, triton_context):
        for factor in (1, 2):
            yield [triton_context.infer("double", {"x": each["x"] * factor}) for each in requests]

    bind_stream(triton, name, send_request)
    responses, _ = streamed(triton, name, 3)
    assert responses == [6, 12, None]


def test_a_whole_batch_is_sent_in_one_call(triton, name):
    @batch
    @triton_context
    def send_request(x, triton_context):
        return triton_context.infer("double", {"x": x})

    bind_floats(triton, name, send_request, config=ModelConfig(max_batch_size=8, batcher=DynamicBatcher(100_000)))
    assert at_once(8, lambda number: send_floats(triton, name, [number])) == [[2 * number] for number in range(8)]


DTYPES = [np.dtype(each.numpy_dtype) for each in DATATYPES if each.name != "BYTES"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_datatype_is_returned_unchanged(triton, name, dtype):
    tensors = {"inputs": [Tensor(name="x", shape=(-1, -1), dtype=dtype)]}
    triton.bind(
        f"same_{name}",
        lambda requests: [{"y": each["x"]} for each in requests],
        outputs=[Tensor(name="y", shape=(-1, -1), dtype=dtype)],
        config=NO_BATCHING,
        **tensors,
    )
    sent = np.arange(35).reshape(5, 7).astype(dtype)
    received = called(triton, name, lambda context: context.infer(f"same_{name}", {"x": sent}))["y"]
    assert received.dtype == dtype
    assert received.tolist() == sent.tolist()


@pytest.fixture(scope="module")
def texts(triton):
    triton.bind(
        "texts",
        lambda requests: [{"y": each["x"]} for each in requests],
        inputs=[Tensor(name="x", shape=(-1,), dtype=bytes)],
        outputs=[Tensor(name="y", shape=(-1,), dtype=bytes)],
        config=NO_BATCHING,
    )


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (np.array([b"one", b"", b"\x00\xff" * 9], object), [b"one", b"", b"\x00\xff" * 9]),
        (np.array(["héllo", ""]), ["héllo".encode(), b""]),
        (np.array([b"fixed", b"as"]), [b"fixed", b"as"]),
        (np.array([b"x" * 3_000_000, b"y"], object), [b"x" * 3_000_000, b"y"]),
        (np.array([b""], object), [b""]),
    ],
    ids=["bytes", "str", "fixed", "large", "empty"],
)
def test_strings_are_returned_unchanged(triton, name, texts, sent, expected):
    received = called(triton, name, lambda context: context.infer("texts", {"x": sent}))["y"]
    assert received.tolist() == expected


def test_ten_megabytes_are_returned_unchanged(triton, name):
    sent = np.random.default_rng(0).random((1, 2_500_000), np.float32)
    received = called(triton, name, lambda context: context.infer("double", {"x": sent}))["y"]
    np.testing.assert_array_equal(received, sent * 2)


def test_arrays_need_not_be_contiguous(triton, name):
    sent = np.arange(64, dtype=np.float32).reshape(4, 16)[::2, ::-3]
    received = called(triton, name, lambda context: context.infer("double", {"x": sent}))["y"]
    np.testing.assert_array_equal(received, sent * 2)


def test_an_empty_array_is_returned_unchanged(triton, name):
    received = called(triton, name, lambda context: context.infer("double", {"x": np.empty((1, 0), np.float32)}))["y"]
    assert received.shape == (1, 0)


def test_outputs_do_not_change_while_they_are_held(triton, name):
    def send_request(context):
        first = context.infer("double", {"x": np.full((1, 1000), 1, np.float32)})["y"]
        later = [context.infer("double", {"x": np.full((1, 1000), value, np.float32)})["y"] for value in range(2, 50)]
        return first, later

    first, later = called(triton, name, send_request)
    assert set(first.ravel()) == {2}
    assert [array[0, -1] for array in later] == [2 * value for value in range(2, 50)]


def test_a_model_streams_from_another(triton, name):
    def send_request(context):
        return [outputs["y"].item() for outputs in context.stream("count", {"x": np.array([[5]], np.float32)})]

    assert called(triton, name, send_request) == [0, 1, 2, 3, 4]


def test_a_coroutine_streams_from_another(triton, name):
    async def send_request(context):
        stream = context.astream("count", {"x": np.array([[5]], np.float32)})
        return [outputs["y"].item() async for outputs in stream]

    assert called(triton, name, send_request) == [0, 1, 2, 3, 4]


def test_a_stream_of_a_model_that_is_not_decoupled_has_one_response(triton, name):
    (outputs,) = called(triton, name, lambda context: list(context.stream("double", ROW)))
    assert outputs["y"].tolist() == [[2, 4, 6]]


def test_leaving_a_stream_closes_it(triton, name):
    ended = threading.Event()

    def endless(requests):
        try:
            while True:
                yield requests
                time.sleep(0.001)
        finally:
            ended.set()

    bind_stream(triton, f"endless_{name}", endless)

    def send_request(context):
        with contextlib.closing(context.stream(f"endless_{name}", {"x": np.ones((1, 1), np.float32)})) as stream:
            return next(stream)["y"].item()

    assert called(triton, name, send_request) == 1
    assert ended.wait(10)


def test_metadata_arrives(triton, name):
    seen = []

    def look(requests):
        seen.extend((each.parameters, each.request_id, each.requested_output_names) for each in requests)
        return [{"y": each["x"], "z": each["x"]} for each in requests]

    outputs = [Tensor(name=output, shape=(-1,), dtype=np.float32) for output in "yz"]
    triton.bind(f"look_{name}", look, [Tensor(name="x", shape=(-1,), dtype=np.float32)], outputs)
    parameters = {"text": "höflich", "whole": -5, "yes": True, "share": 0.25}

    def send_request(context):
        return context.infer(
            f"look_{name}", ROW, parameters=parameters, request_id="seven", requested_outputs=["z"], version=1
        )

    assert list(called(triton, name, send_request)) == ["z"]
    assert seen == [(parameters, "seven", ["z"])]


def test_without_parameters_a_model_gets_an_empty_dictionary(triton, name):
    seen = []
    bind_floats(triton, f"look_{name}", lambda requests: seen.append(requests[0].parameters) or requests)
    called(triton, name, lambda context: context.infer(f"look_{name}", ROW))
    assert seen == [{}]


def test_a_hundred_requests_of_a_coroutine_are_in_flight_at_once(triton, name):
    waiting, most = 0, 0

    async def linger(requests):
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(0.3)
        waiting -= 1
        return [{"y": each["x"]} for each in requests]

    bind_floats(triton, f"linger_{name}", linger, config=NO_BATCHING)

    async def send_request(context):
        calls = [context.ainfer(f"linger_{name}", {"x": np.array([value], np.float32)}) for value in range(100)]
        return [outputs["y"].item() for outputs in await asyncio.gather(*calls)]

    assert called(triton, name, send_request) == list(range(100))
    assert most > 50


def test_eight_threads_call_at_once(triton, name):
    def send_request(context):
        def work(number):
            return [
                context.infer("double", {"x": np.full((1, 64), number, np.float32)})["y"][0, 63] for _ in range(100)
            ]

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            return list(pool.map(work, range(8)))

    assert called(triton, name, send_request) == [[2 * number] * 100 for number in range(8)]


def test_threads_and_coroutines_call_at_the_same_time(triton, name):
    def work(context, number):
        return {context.infer("double", {"x": np.full((1, 1), number, np.float32)})["y"].item() for _ in range(50)}

    async def send_request(context):
        loop = asyncio.get_running_loop()
        threads = [loop.run_in_executor(None, work, context, number) for number in range(4)]

        async def many(number):
            return {
                (await context.ainfer("double", {"x": np.full((1, 1), number, np.float32)}))["y"].item()
                for _ in range(50)
            }

        return await asyncio.gather(*threads, *(many(number) for number in range(4, 8)))

    assert called(triton, name, send_request) == [{2 * number} for number in range(8)]


def test_coroutines_of_another_event_loop_may_call(triton, name):
    async def send_request(context):
        return (await context.ainfer("double", ROW))["y"].tolist()

    assert (
        called(triton, name, lambda context: [asyncio.run(send_request(context)) for _ in range(3)])
        == [[[2, 4, 6]]] * 3
    )


def test_models_call_each_other_in_a_chain(triton, name):
    bind_floats(triton, f"{name}_0", batch(lambda x: {"y": x + 1}))
    for level in range(1, 6):
        below = f"{name}_{level - 1}"
        bind_caller(
            triton,
            f"{name}_{level}",
            lambda context, requests, below=below: [context.infer(below, {"x": each["x"]}) for each in requests],
        )
    assert send_floats(triton, f"{name}_5", [1]) == [2]


def test_requests_of_an_unloaded_model_are_completed(triton, name):
    entered, gate = threading.Event(), threading.Event()

    def hold(requests):
        entered.set()
        assert gate.wait(60)
        return requests

    bind_floats(triton, f"hold_{name}", hold)
    bind_caller(triton, name, lambda context, requests: [context.infer(f"hold_{name}", {"x": requests[0]["x"]})])
    sent = Background(lambda: send_floats(triton, name, [4]))
    assert entered.wait(10)
    request_json(triton, "POST", f"/v2/repository/models/{name}/unload", {}, token_of(triton))
    gate.set()
    assert sent.finish().result == [4]


def test_a_thousand_requests_leave_nothing_behind(triton, name):
    def send_request(context, requests):
        for size in (1, 1000, 100_000):
            for _ in range(int(requests[0]["x"][0, 0])):
                context.infer("double", {"x": np.ones((1, size), np.float32)})
                with contextlib.suppress(PyTritonInferenceError):
                    context.infer("fails", {"x": np.ones((1, size), np.float32)})
                with contextlib.closing(context.stream("count", {"x": np.full((1, 1), 3, np.float32)})) as stream:
                    next(stream)
        gc.collect()
        wait_until(
            lambda: current_client().in_use() == 0, what="no block in use"
        )  # of streams that were left, a little later
        return requests

    bind_caller(triton, name, send_request)
    assert send_floats(triton, name, [20]) == [20]
    before = Footprint(triton)
    assert send_floats(triton, name, [120]) == [120]
    assert_same(before, settled(triton, before))


def test_the_server_stops_while_a_request_waits_for_another():
    entered = threading.Event()
    with running_triton() as triton:

        def hold(requests):
            entered.set()
            time.sleep(1)
            return requests

        bind_floats(triton, "hold", hold)
        bind_caller(triton, "asks", lambda context, requests: [context.infer("hold", {"x": requests[0]["x"]})])
        triton.run()
        with contextlib.closing(Client("http", triton)) as client:
            sent = Background(lambda: client.infer("asks", {"x": np.ones((1, 1), np.float32)}))
            assert entered.wait(10)
    assert sent.finish().error is None or isinstance(sent.error, (InferenceServerException, OSError))
