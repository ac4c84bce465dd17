"""Errors of bound models that call others."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time

import numpy as np
import pytest
from bls_models import CODES, ROW, bind_caller, called
from serving import Background, at_once, bind_floats, send_floats

from pytriton.decorators import batch, triton_context
from pytriton.exceptions import PyTritonBadParameterError, PyTritonInferenceError, PyTritonInvalidOperationError
from pytriton.model_config import DynamicBatcher, ModelConfig
from pytriton.proxy.context import TritonContext

pytestmark = pytest.mark.usefixtures("callees")


@pytest.mark.parametrize(
    ("model", "number", "found"), [("count", 5, "several responses"), ("silent", 1, "no response")]
)
def test_infer_of_a_decoupled_model_requires_exactly_one_response(triton, name, model, number, found):
    with pytest.raises(PyTritonInferenceError, match=f"'{model}' is decoupled, and sent {found}") as error:
        called(triton, name, lambda context: context.infer(model, {"x": np.full((1, 1), number, np.float32)}))
    assert error.value.code == CODES["unsupported"]


def test_infer_of_a_decoupled_model_with_one_response_returns_it(triton, name):
    outputs = called(triton, name, lambda context: context.infer("count", {"x": np.ones((1, 1), np.float32)}))
    assert outputs["y"].tolist() == [[0]]


def test_an_unknown_model_is_an_error(triton, name):
    with pytest.raises(PyTritonInferenceError, match="unknown model: 'nobody'") as error:
        called(triton, name, lambda context: context.infer("nobody", ROW))
    assert error.value.code == CODES["not found"]


def test_an_unknown_version_is_an_error(triton, name):
    with pytest.raises(PyTritonInferenceError, match="version 7"):
        called(triton, name, lambda context: context.infer("double", ROW, version=7))


def test_the_error_of_a_model_reaches_its_caller_and_the_client(triton, name):
    with pytest.raises(PyTritonInferenceError, match="ValueError: the weights are lost"):
        called(triton, name, lambda context: context.infer("fails", ROW))
    bind_caller(triton, f"{name}_again", lambda context, requests: [context.infer("fails", ROW)])
    assert "ValueError: the weights are lost" in send_floats(triton, f"{name}_again", [0])


def test_an_error_ends_a_stream(triton, name):
    with pytest.raises(PyTritonInferenceError, match="the weights are lost"):
        called(triton, name, lambda context: list(context.stream("fails", ROW)))


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
def test_invalid_inputs_are_an_error(triton, name, inputs, message):
    with pytest.raises(PyTritonInferenceError, match=message) as error:
        called(triton, name, lambda context: context.infer("double", inputs))
    assert error.value.code == CODES["invalid"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": {1: ROW["x"]}}, "has an input of the name 1: names are strings"),
        ({"inputs": {"x": [[1, 2]]}}, "input 'x' is a list, not a NumPy array"),
        ({"inputs": {"x": np.ones((1, 2), complex)}}, "dtype complex128 is not one that Triton has"),
        ({"inputs": {"x": np.array([[b"a", 7]], object)}}, "input 'x' contains 7, which is an int: use bytes or str"),
        ({"inputs": ROW, "parameters": {"key": None}}, "parameter 'key' .* is None: use str, bool, int or float"),
        ({"inputs": ROW, "parameters": {"key": 1 << 70}}, "does not fit 64 bits"),
        ({"inputs": ROW, "timeout": 3}, "requests have no option 'timeout'; they have version, parameters"),
    ],
    ids=["number", "list", "complex", "no bytes", "none", "large", "option"],
)
def test_unsendable_requests_are_refused_at_once(triton, name, arguments, message):
    with pytest.raises((TypeError, PyTritonBadParameterError), match=message):
        called(triton, name, lambda context: context.infer("double", **arguments))


LONG = {"x": np.full((1, 1), 30, np.float32)}


async def infer_in_time(context):
    return await context.ainfer("slow", LONG, timeout_s=0.2)


@pytest.mark.parametrize(
    "send_request",
    [lambda context: context.infer("slow", LONG, timeout_s=0.2), infer_in_time],
    ids=["function", "coroutine"],
)
def test_a_timeout_ends_the_request(triton, name, send_request):
    start = time.monotonic()
    with pytest.raises(PyTritonInferenceError, match=r"'slow' sent no response within 0\.2 s") as error:
        called(triton, name, send_request)
    assert error.value.code == CODES["unavailable"]
    assert send_floats(triton, "slow", [0]) == [0]  # which was cancelled, and serves others
    assert time.monotonic() - start < 15


def test_a_cancelled_task_cancels_the_request(triton, name):
    async def send_request(context):
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(context.ainfer("slow", LONG), 0.2)

    start = time.monotonic()
    called(triton, name, send_request)
    assert send_floats(triton, "slow", [0]) == [0]
    assert time.monotonic() - start < 15


def refused(triton, model, value=0):
    """The error of a request, which must not wait."""
    return Background(lambda: send_floats(triton, model, [value])).finish().result


def test_a_call_of_a_model_to_itself_is_refused(triton, name):
    bind_caller(triton, name, lambda context, requests: [context.infer(name, {"x": each["x"]}) for each in requests])
    error = refused(triton, name)
    assert f"would deadlock: all instances of model '{name}' are waiting" in error
    assert f"('{name}' calls '{name}')" in error


def test_a_cycle_of_models_is_refused(triton, name):
    for one, other in (("a", "b"), ("b", "c"), ("c", "a")):
        bind_caller(
            triton,
            f"{name}_{one}",
            lambda context, requests, other=other: [context.infer(f"{name}_{other}", {"x": requests[0]["x"]})],
        )
    assert f"'{name}_a' calls '{name}_b' calls '{name}_c' calls '{name}_a'" in refused(triton, f"{name}_a")


def test_a_cycle_is_refused_where_requests_are_batched(triton, name):
    @batch
    @triton_context
    def send_request(x, triton_context):
        return triton_context.infer(f"{name}_b", {"x": x})

    config = ModelConfig(max_batch_size=8, batcher=DynamicBatcher(50_000))
    bind_floats(triton, f"{name}_a", send_request, config=config)
    bind_caller(
        triton,
        f"{name}_b",
        lambda context, requests: [context.infer(f"{name}_a", {"x": requests[0]["x"]})],
        config=config,
    )
    errors = at_once(8, lambda _: refused(triton, f"{name}_a"))
    assert all("would deadlock" in error for error in errors)


def down(model, **options):
    """Calls itself with one less, down to zero."""

    def send_request(context, requests):
        x = requests[0]["x"]
        return [context.infer(model, {"x": x - 1}, **options) if x[0, 0] > 0 else {"y": x}]

    return send_request


def test_a_model_may_call_itself_as_often_as_it_has_other_instances(triton, name):
    send_request = down(name)

    @triton_context
    def call(requests, triton_context):
        return send_request(triton_context, requests)

    bind_floats(triton, name, [call, functools.partial(call), functools.partial(call)])
    assert send_floats(triton, name, [2]) == [0]
    assert "would deadlock" in refused(triton, name, 3)


def test_a_coroutine_may_call_its_own_model_within_the_limit_of_batches(triton, name):
    async def send_request(context, requests):
        x = requests[0]["x"]
        return [await context.ainfer(name, {"x": x - 1}) if x[0, 0] > 0 else {"y": x}]

    bind_caller(triton, name, send_request, config=ModelConfig(max_batch_size=1, max_in_flight=4))
    assert send_floats(triton, name, [3]) == [0]
    assert "would deadlock" in refused(triton, name, 4)


def test_models_are_still_served_after_a_refused_cycle(triton, name):
    bind_caller(triton, name, down(name))
    assert "would deadlock" in refused(triton, name, 1)
    assert send_floats(triton, name, [0]) == [0]


def test_an_undetected_call_to_oneself_times_out_with_a_reason(triton, name):
    """The context of another call is not the one of the batch that waits."""
    context = called(triton, f"other_{name}", lambda context: context)
    pending = iter([True])  # the request that timed out is served later, and must not send another one

    def ask_once(_, requests):
        return [context.infer(name, ROW, timeout_s=0.3)] if next(pending, False) else [{"y": requests[0]["x"]}]

    bind_caller(triton, name, ask_once)
    error = refused(triton, name, 0)
    assert "sent no response within 0.3 s" in error
    assert "If every instance of the model is waiting for this request" in error


def test_infer_in_a_coroutine_is_refused(triton, name):
    async def send_request(context):
        return context.infer("double", ROW)

    with pytest.raises(PyTritonInvalidOperationError, match=r"would block the event loop .* use ainfer"):
        called(triton, name, send_request)


def test_a_context_outside_of_a_call_cannot_call_models():
    with pytest.raises(PyTritonInvalidOperationError, match="only from within a call"):
        TritonContext().infer("double", ROW)
