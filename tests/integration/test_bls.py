"""Bound models that ask other models of the server, through the Triton context."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import gc
import threading
import time

import numpy as np
import pytest
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
)
from streaming import bind_stream, streamed

from pytriton.decorators import batch, triton_context
from pytriton.exceptions import PyTritonBadParameterError, PyTritonInferenceError, PyTritonInvalidOperationError
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.model_config.datatypes import DATATYPES
from pytriton.proxy.context import TritonContext
from pytriton.proxy.services import current

CODES = {"not found": 2, "invalid": 3, "unavailable": 4, "unsupported": 5}
ROW = {"x": np.array([[1, 2, 3]], np.float32)}


def asking(triton, name, ask, **arguments):
    """Binds a model whose callable is ``ask(context, requests)``."""
    if asyncio.iscoroutinefunction(ask):

        @triton_context
        async def call(requests, triton_context):
            return await ask(triton_context, requests)
    else:

        @triton_context
        def call(requests, triton_context):
            return ask(triton_context, requests)

    bind_floats(triton, name, call, **arguments)


def asked(triton, name, ask, **arguments):
    """Has ``ask(context)`` called once within a bound model, and returns what it returns or raises what it raises."""
    kept = []

    def call(context, requests):
        try:
            kept.append((ask(context), None))
        except BaseException as error:
            kept.append((None, error))
        return requests

    async def call_async(context, requests):
        try:
            kept.append((await ask(context), None))
        except BaseException as error:
            kept.append((None, error))
        return [{"y": request["x"]} for request in requests]

    asking(triton, name, call_async if asyncio.iscoroutinefunction(ask) else call, **arguments)
    assert send_floats(triton, name, [0]) == [0]
    ((result, error),) = kept
    if error is not None:
        raise error
    return result


@pytest.fixture(scope="module", autouse=True)
def callees(triton):
    """Models that any test may ask."""
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


def test_a_model_asks_another(triton, name):
    asking(triton, name, lambda context, requests: [context.infer("double", {"x": each["x"]}) for each in requests])
    assert send_floats(triton, name, [1, 2, 3]) == [2, 4, 6]


def test_a_coroutine_asks_another(triton, name):
    async def ask(context, requests):
        return [await context.ainfer("double", {"x": each["x"]}) for each in requests]

    asking(triton, name, ask)
    assert send_floats(triton, name, [1, 2, 3]) == [2, 4, 6]


def test_a_generator_asks_another(triton, name):
    @triton_context
    def ask(requests, triton_context):
        for factor in (1, 2):
            yield [triton_context.infer("double", {"x": each["x"] * factor}) for each in requests]

    bind_stream(triton, name, ask)
    answers, _ = streamed(triton, name, 3)
    assert answers == [6, 12, None]


def test_a_whole_batch_is_asked_for_at_once(triton, name):
    @batch
    @triton_context
    def ask(x, triton_context):
        return triton_context.infer("double", {"x": x})

    bind_floats(triton, name, ask, config=ModelConfig(max_batch_size=8, batcher=DynamicBatcher(100_000)))
    assert at_once(8, lambda number: send_floats(triton, name, [number])) == [[2 * number] for number in range(8)]


DTYPES = [np.dtype(each.numpy_dtype) for each in DATATYPES if each.name != "BYTES"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_datatype_comes_back(triton, name, dtype):
    tensors = {"inputs": [Tensor(name="x", shape=(-1, -1), dtype=dtype)]}
    triton.bind(
        f"same_{name}",
        lambda requests: [{"y": each["x"]} for each in requests],
        outputs=[Tensor(name="y", shape=(-1, -1), dtype=dtype)],
        config=NO_BATCHING,
        **tensors,
    )
    sent = np.arange(35).reshape(5, 7).astype(dtype)
    received = asked(triton, name, lambda context: context.infer(f"same_{name}", {"x": sent}))["y"]
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
def test_strings_come_back(triton, name, texts, sent, expected):
    received = asked(triton, name, lambda context: context.infer("texts", {"x": sent}))["y"]
    assert received.tolist() == expected


def test_ten_megabytes_come_back_equal(triton, name):
    sent = np.random.default_rng(0).random((1, 2_500_000), np.float32)
    received = asked(triton, name, lambda context: context.infer("double", {"x": sent}))["y"]
    np.testing.assert_array_equal(received, sent * 2)


def test_arrays_need_not_be_contiguous(triton, name):
    sent = np.arange(64, dtype=np.float32).reshape(4, 16)[::2, ::-3]
    received = asked(triton, name, lambda context: context.infer("double", {"x": sent}))["y"]
    np.testing.assert_array_equal(received, sent * 2)


def test_an_array_without_elements_comes_back(triton, name):
    received = asked(triton, name, lambda context: context.infer("double", {"x": np.empty((1, 0), np.float32)}))["y"]
    assert received.shape == (1, 0)


def test_outputs_stay_as_they_are_while_they_are_held(triton, name):
    def ask(context):
        first = context.infer("double", {"x": np.full((1, 1000), 1, np.float32)})["y"]
        later = [context.infer("double", {"x": np.full((1, 1000), value, np.float32)})["y"] for value in range(2, 50)]
        return first, later

    first, later = asked(triton, name, ask)
    assert set(first.ravel()) == {2}
    assert [array[0, -1] for array in later] == [2 * value for value in range(2, 50)]


def test_a_model_streams_from_another(triton, name):
    def ask(context):
        return [outputs["y"].item() for outputs in context.stream("count", {"x": np.array([[5]], np.float32)})]

    assert asked(triton, name, ask) == [0, 1, 2, 3, 4]


def test_a_coroutine_streams_from_another(triton, name):
    async def ask(context):
        stream = context.astream("count", {"x": np.array([[5]], np.float32)})
        return [outputs["y"].item() async for outputs in stream]

    assert asked(triton, name, ask) == [0, 1, 2, 3, 4]


def test_a_stream_of_a_model_that_is_not_decoupled_has_one_response(triton, name):
    (outputs,) = asked(triton, name, lambda context: list(context.stream("double", ROW)))
    assert outputs["y"].tolist() == [[2, 4, 6]]


def test_leaving_a_stream_ends_it(triton, name):
    ended = threading.Event()

    def endless(requests):
        try:
            while True:
                yield requests
                time.sleep(0.001)
        finally:
            ended.set()

    bind_stream(triton, f"endless_{name}", endless)

    def ask(context):
        with contextlib.closing(context.stream(f"endless_{name}", {"x": np.ones((1, 1), np.float32)})) as stream:
            return next(stream)["y"].item()

    assert asked(triton, name, ask) == 1
    assert ended.wait(10)


@pytest.mark.parametrize(
    ("model", "number", "found"), [("count", 5, "several responses"), ("silent", 1, "no response")]
)
def test_one_response_of_a_decoupled_model_has_to_be_one(triton, name, model, number, found):
    with pytest.raises(PyTritonInferenceError, match=f"'{model}' is decoupled, and answered with {found}") as error:
        asked(triton, name, lambda context: context.infer(model, {"x": np.full((1, 1), number, np.float32)}))
    assert error.value.code == CODES["unsupported"]


def test_a_decoupled_model_that_answers_once_may_be_asked_for_it(triton, name):
    outputs = asked(triton, name, lambda context: context.infer("count", {"x": np.ones((1, 1), np.float32)}))
    assert outputs["y"].tolist() == [[0]]


def test_an_unknown_model_is_an_error(triton, name):
    with pytest.raises(PyTritonInferenceError, match="unknown model: 'nobody'") as error:
        asked(triton, name, lambda context: context.infer("nobody", ROW))
    assert error.value.code == CODES["not found"]


def test_an_unknown_version_is_an_error(triton, name):
    with pytest.raises(PyTritonInferenceError, match="version 7"):
        asked(triton, name, lambda context: context.infer("double", ROW, version=7))


def test_the_error_of_a_model_reaches_the_one_that_asks_and_its_client(triton, name):
    with pytest.raises(PyTritonInferenceError, match="ValueError: the weights are lost"):
        asked(triton, name, lambda context: context.infer("fails", ROW))
    asking(triton, f"{name}_again", lambda context, requests: [context.infer("fails", ROW)])
    assert "ValueError: the weights are lost" in send_floats(triton, f"{name}_again", [0])


def test_an_error_ends_a_stream(triton, name):
    with pytest.raises(PyTritonInferenceError, match="the weights are lost"):
        asked(triton, name, lambda context: list(context.stream("fails", ROW)))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"z": ROW["x"]}, "unexpected inference input 'z'"),
        ({}, "expected 1 inputs but got 0"),
        ({"x": np.ones((1, 2, 3), np.float32)}, "unexpected shape for input 'x'"),
        ({"x": np.ones((1, 2), np.int64)}, "data-type is 'INT64', but model 'double' expects 'FP32'"),
        ({"x": np.array(1, np.float32)}, "shape"),
    ],
    ids=["name", "none", "rank", "dtype", "scalar"],
)
def test_inputs_that_do_not_fit_are_an_error(triton, name, inputs, message):
    with pytest.raises(PyTritonInferenceError, match=message) as error:
        asked(triton, name, lambda context: context.infer("double", inputs))
    assert error.value.code == CODES["invalid"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": {"x": [[1, 2]]}}, "input 'x' is a list, not a NumPy array"),
        ({"inputs": {"x": np.ones((1, 2), complex)}}, "dtype complex128 is not one that Triton has"),
        ({"inputs": ROW, "parameters": {"key": None}}, "parameter 'key' .* is None: use str, bool, int or float"),
        ({"inputs": ROW, "parameters": {"key": 1 << 70}}, "does not fit 64 bits"),
        ({"inputs": ROW, "timeout": 3}, "requests have no option 'timeout'; they have version, parameters"),
    ],
    ids=["list", "complex", "none", "large", "option"],
)
def test_what_cannot_be_sent_is_refused_at_once(triton, name, arguments, message):
    with pytest.raises((TypeError, PyTritonBadParameterError), match=message):
        asked(triton, name, lambda context: context.infer("double", **arguments))


LONG = {"x": np.full((1, 1), 30, np.float32)}


async def infer_in_time(context):
    return await context.ainfer("slow", LONG, timeout_s=0.2)


@pytest.mark.parametrize(
    "ask", [lambda context: context.infer("slow", LONG, timeout_s=0.2), infer_in_time], ids=["function", "coroutine"]
)
def test_a_timeout_ends_the_request(triton, name, ask):
    start = time.monotonic()
    with pytest.raises(PyTritonInferenceError, match=r"'slow' gave no response within 0\.2 s") as error:
        asked(triton, name, ask)
    assert error.value.code == CODES["unavailable"]
    assert send_floats(triton, "slow", [0]) == [0]  # which was cancelled, and serves others
    assert time.monotonic() - start < 15


def test_a_cancelled_task_cancels_the_request(triton, name):
    async def ask(context):
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(context.ainfer("slow", LONG), 0.2)

    start = time.monotonic()
    asked(triton, name, ask)
    assert send_floats(triton, "slow", [0]) == [0]
    assert time.monotonic() - start < 15


def test_what_is_sent_besides_tensors_arrives(triton, name):
    seen = []

    def look(requests):
        seen.extend((each.parameters, each.request_id, each.requested_output_names) for each in requests)
        return [{"y": each["x"], "z": each["x"]} for each in requests]

    outputs = [Tensor(name=output, shape=(-1,), dtype=np.float32) for output in "yz"]
    triton.bind(f"look_{name}", look, [Tensor(name="x", shape=(-1,), dtype=np.float32)], outputs)
    parameters = {"text": "höflich", "whole": -5, "yes": True, "share": 0.25}

    def ask(context):
        return context.infer(
            f"look_{name}", ROW, parameters=parameters, request_id="seven", requested_outputs=["z"], version=1
        )

    assert list(asked(triton, name, ask)) == ["z"]
    assert seen == [(parameters, "seven", ["z"])]


def test_without_parameters_none_arrive(triton, name):
    seen = []
    bind_floats(triton, f"look_{name}", lambda requests: seen.append(requests[0].parameters) or requests)
    asked(triton, name, lambda context: context.infer(f"look_{name}", ROW))
    assert seen == [None]


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

    async def ask(context):
        calls = [context.ainfer(f"linger_{name}", {"x": np.array([value], np.float32)}) for value in range(100)]
        return [outputs["y"].item() for outputs in await asyncio.gather(*calls)]

    assert asked(triton, name, ask) == list(range(100))
    assert most > 50


def test_eight_threads_ask_at_once(triton, name):
    def ask(context):
        def work(number):
            return [
                context.infer("double", {"x": np.full((1, 64), number, np.float32)})["y"][0, 63] for _ in range(100)
            ]

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            return list(pool.map(work, range(8)))

    assert asked(triton, name, ask) == [[2 * number] * 100 for number in range(8)]


def test_threads_and_coroutines_ask_at_the_same_time(triton, name):
    def work(context, number):
        return {context.infer("double", {"x": np.full((1, 1), number, np.float32)})["y"].item() for _ in range(50)}

    async def ask(context):
        loop = asyncio.get_running_loop()
        threads = [loop.run_in_executor(None, work, context, number) for number in range(4)]

        async def many(number):
            return {
                (await context.ainfer("double", {"x": np.full((1, 1), number, np.float32)}))["y"].item()
                for _ in range(50)
            }

        return await asyncio.gather(*threads, *(many(number) for number in range(4, 8)))

    assert asked(triton, name, ask) == [{2 * number} for number in range(8)]


def test_another_loop_than_the_models_may_ask(triton, name):
    async def ask(context):
        return (await context.ainfer("double", ROW))["y"].tolist()

    assert asked(triton, name, lambda context: [asyncio.run(ask(context)) for _ in range(3)]) == [[[2, 4, 6]]] * 3


def test_models_ask_in_a_chain(triton, name):
    bind_floats(triton, f"{name}_0", batch(lambda x: {"y": x + 1}))
    for level in range(1, 6):
        below = f"{name}_{level - 1}"
        asking(
            triton,
            f"{name}_{level}",
            lambda context, requests, below=below: [context.infer(below, {"x": each["x"]}) for each in requests],
        )
    assert send_floats(triton, f"{name}_5", [1]) == [2]


def refused(triton, model, value=0):
    """The error of a request, which must not wait."""
    return Background(lambda: send_floats(triton, model, [value])).finish().result


def test_a_model_that_asks_itself_is_refused(triton, name):
    asking(triton, name, lambda context, requests: [context.infer(name, {"x": each["x"]}) for each in requests])
    error = refused(triton, name)
    assert f"would wait for itself, for all instances of model '{name}' are waiting" in error
    assert f"('{name}' asks '{name}')" in error


def test_a_cycle_of_models_is_refused(triton, name):
    for one, other in (("a", "b"), ("b", "c"), ("c", "a")):
        asking(
            triton,
            f"{name}_{one}",
            lambda context, requests, other=other: [context.infer(f"{name}_{other}", {"x": requests[0]["x"]})],
        )
    assert f"'{name}_a' asks '{name}_b' asks '{name}_c' asks '{name}_a'" in refused(triton, f"{name}_a")


def test_a_cycle_is_refused_where_requests_are_batched(triton, name):
    @batch
    @triton_context
    def ask(x, triton_context):
        return triton_context.infer(f"{name}_b", {"x": x})

    config = ModelConfig(max_batch_size=8, batcher=DynamicBatcher(50_000))
    bind_floats(triton, f"{name}_a", ask, config=config)
    asking(
        triton,
        f"{name}_b",
        lambda context, requests: [context.infer(f"{name}_a", {"x": requests[0]["x"]})],
        config=config,
    )
    errors = at_once(8, lambda _: refused(triton, f"{name}_a"))
    assert all("would wait for itself" in error for error in errors)


def down(model, **options):
    """Asks itself with one less, until there is nothing left."""

    def ask(context, requests):
        x = requests[0]["x"]
        return [context.infer(model, {"x": x - 1}, **options) if x[0, 0] > 0 else {"y": x}]

    return ask


def test_a_model_with_more_instances_may_ask_itself_as_often(triton, name):
    ask = down(name)

    @triton_context
    def call(requests, triton_context):
        return ask(triton_context, requests)

    bind_floats(triton, name, [call, functools.partial(call), functools.partial(call)])
    assert send_floats(triton, name, [2]) == [0]
    assert "would wait for itself" in refused(triton, name, 3)


def test_a_coroutine_may_ask_its_own_model_as_often_as_it_has_places(triton, name):
    async def ask(context, requests):
        x = requests[0]["x"]
        return [await context.ainfer(name, {"x": x - 1}) if x[0, 0] > 0 else {"y": x}]

    asking(triton, name, ask, config=ModelConfig(max_batch_size=1, max_in_flight=4))
    assert send_floats(triton, name, [3]) == [0]
    assert "would wait for itself" in refused(triton, name, 4)


def test_a_refused_cycle_leaves_the_models_at_work(triton, name):
    asking(triton, name, down(name))
    assert "would wait for itself" in refused(triton, name, 1)
    assert send_floats(triton, name, [0]) == [0]


def test_a_request_to_oneself_of_which_nobody_can_tell_times_out_with_a_reason(triton, name):
    """The context of another call is not the one of the batch that waits."""
    context = asked(triton, f"other_{name}", lambda context: context)
    asking(triton, name, lambda _, requests: [context.infer(name, {"x": requests[0]["x"]}, timeout_s=0.3)])
    error = refused(triton, name, 0)
    assert "gave no response within 0.3 s" in error
    assert "if all instances of the model were waiting for this very request" in error


def test_infer_in_a_coroutine_is_refused(triton, name):
    async def ask(context):
        return context.infer("double", ROW)

    with pytest.raises(PyTritonInvalidOperationError, match=r"would hold up the event loop .* use ainfer"):
        asked(triton, name, ask)


def test_a_context_without_a_call_has_nobody_to_ask():
    with pytest.raises(PyTritonInvalidOperationError, match="only while it calls"):
        TritonContext().infer("double", ROW)


def test_requests_of_a_model_that_is_unloaded_are_answered(triton, name):
    entered, gate = threading.Event(), threading.Event()

    def hold(requests):
        entered.set()
        assert gate.wait(60)
        return requests

    bind_floats(triton, f"hold_{name}", hold)
    asking(triton, name, lambda context, requests: [context.infer(f"hold_{name}", {"x": requests[0]["x"]})])
    sent = Background(lambda: send_floats(triton, name, [4]))
    assert entered.wait(10)
    request_json(triton, "POST", f"/v2/repository/models/{name}/unload", {}, token_of(triton))
    gate.set()
    assert sent.finish().result == [4]


def test_a_thousand_requests_leave_nothing_behind(triton, name):
    open_blocks = []

    def ask(context, requests):
        for size in (1, 1000, 100_000):
            for _ in range(int(requests[0]["x"][0, 0])):
                context.infer("double", {"x": np.ones((1, size), np.float32)})
                with contextlib.suppress(PyTritonInferenceError):
                    context.infer("fails", {"x": np.ones((1, size), np.float32)})
                with contextlib.closing(context.stream("count", {"x": np.full((1, 1), 3, np.float32)})) as stream:
                    next(stream)
        gc.collect()
        open_blocks.append(current().in_use())
        return requests

    asking(triton, name, ask)
    send_floats(triton, name, [20])
    before = Footprint(triton)
    send_floats(triton, name, [120])
    assert_same(before, settled(triton, before))
    assert max(open_blocks) <= 2  # the last may be on its way back


def test_the_server_stops_while_a_request_waits_for_another():
    entered = threading.Event()
    with running_triton() as triton:

        def hold(requests):
            entered.set()
            time.sleep(1)
            return requests

        bind_floats(triton, "hold", hold)
        asking(triton, "asks", lambda context, requests: [context.infer("hold", {"x": requests[0]["x"]})])
        triton.run()
        with contextlib.closing(Client("http", triton)) as client:
            sent = Background(lambda: client.infer("asks", {"x": np.ones((1, 1), np.float32)}))
            assert entered.wait(10)
    assert sent.finish().error is None or isinstance(sent.error, (InferenceServerException, OSError))
