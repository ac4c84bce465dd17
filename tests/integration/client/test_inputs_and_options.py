"""Inputs, requested outputs and options of requests."""

from __future__ import annotations

import threading
import time

import ml_dtypes
import numpy as np
import pytest
from client_kinds import (
    config_for,
    every_kind,
    open_client,
    open_triton,
    url_of,
)
from serving import (
    bind_floats,
    held_model,
    metrics_of,
    statistics_of,
    wait_until,
)

from pytriton.client import (
    FuturesModelClient,
    ModelClient,
    PyTritonClientInputError,
    PyTritonClientModelDoesntSupportBatchingError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.decorators import batch, sample
from pytriton.model_config import DynamicBatcher, ModelConfig, QueuePolicy, Tensor

ALL_DTYPES = [
    np.bool_,
    np.uint8,
    np.uint16,
    np.uint32,
    np.uint64,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.float16,
    np.float32,
    np.float64,
    ml_dtypes.bfloat16,
]


def echo(requests):
    return [{"y": request["x"]} for request in requests]


@every_kind
def test_a_sample_by_name_and_by_position(client):
    for response in (client.infer_sample(a=[1, 2], b=[3, 4]), client.infer_sample([1, 2], [3, 4])):
        assert {key: array.tolist() for key, array in response.items()} == {"add": [4, 6], "sub": [-2, -2]}
        assert response["add"].dtype == np.float32


@every_kind
def test_a_batch_by_name_and_by_position(client):
    a, b = np.float32([[1, 2], [3, 4]]), np.float32([[1, 1], [1, 1]])
    for response in (client.infer_batch(b=b, a=a), client.infer_batch(a, b)):
        assert response["sub"].tolist() == [[0, 1], [2, 3]]


@every_kind
def test_only_the_requested_outputs(client):
    assert list(client.infer_sample([1], [2], outputs=["sub"])) == ["sub"]
    with pytest.raises(PyTritonClientValueError, match=r"There is no output 'mul': model .* has 'add': FP32"):
        client.infer_sample([1], [2], outputs=["mul"])


@every_kind
def test_a_model_without_batching(triton, name, kind, url):
    bind_floats(triton, name, echo, config=config_for(kind, batching=False))
    with open_client(kind, url, name) as client:
        assert client.infer_sample(x=[1, 2])["y"].tolist() == [1, 2]
        with pytest.raises(PyTritonClientModelDoesntSupportBatchingError, match="use infer_sample"):
            client.infer_batch(x=[[1, 2]])


@every_kind
@pytest.mark.parametrize("batching", [True, False])
def test_a_model_whose_inputs_are_all_optional_is_called_without_any(triton, name, kind, url, batching):
    def count(requests):
        return [{"y": np.full((1, 1) if batching else (1,), len(request), np.float32)} for request in requests]

    inputs = [Tensor((-1,), np.float32, each, optional=True) for each in "ab"]
    triton.bind(name, count, inputs, [Tensor((1,), np.float32, "y")], config=config_for(kind, batching=batching))
    with open_client(kind, url, name) as client:
        assert client.infer_sample()["y"].tolist() == [0]
        assert client.infer_sample(b=[1])["y"].tolist() == [1]
        if batching:
            with pytest.raises(PyTritonClientInputError, match=r"No input was given, so the size of the batch is unkn"):
                client.infer_batch()


@every_kind
def test_invalid_inputs_are_refused_before_they_are_sent(client, triton, name):
    client.infer_sample([1], [2])
    for inputs, named, message in [
        ([], {}, r"No input was given: model '\w+' takes 'a': FP32 \(-1,\), 'b': FP32 \(-1,\)"),
        ([[1], [2]], {"a": [1]}, "either by position or by name"),
        ([[1], [2], [3]], {}, "3 inputs were given"),
        ([[1]], {}, "The input 'b' is missing"),
        ([], {"a": [1], "c": [2]}, "There is no input 'c'"),
        ([], {"a": [1], "b": np.float64([1])}, r"Input 'b' .* is FP32 \(-1,\).* has dtype float64"),
        ([[[1]], [1]], {}, r"is FP32 \(-1,\) without the batch dimension, and the value has shape \(1, 1\)"),
    ]:
        with pytest.raises(PyTritonClientValueError, match=message):
            client.infer_sample(*inputs, **named)
    with pytest.raises(PyTritonClientValueError, match="batches of different sizes: 1 of 'a', 2 of 'b'"):
        client.infer_batch([[1]], [[1], [2]])
    wait_until(lambda: statistics_of(triton, name)["inference_count"] == 1)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_every_dtype_is_returned_unchanged(triton, name, url, dtype):
    triton.bind(name, echo, [Tensor((-1, 2), dtype, "x")], [Tensor((-1, 2), dtype, "y")])
    values = np.arange(8).reshape(2, 2, 2).astype(dtype)
    with ModelClient(url, name) as client:
        (received,) = client.infer_batch(values).values()
    assert received.dtype == values.dtype
    assert (received == values).all()


@every_kind
def test_strings_are_encoded_as_utf8(triton, name, kind, url):
    triton.bind(name, echo, [Tensor((-1,), bytes, "x")], [Tensor((-1,), bytes, "y")], config=config_for(kind))
    texts = ["", "Grüße", "\0", "日本"]
    encoded = [text.encode() for text in texts]
    with open_client(kind, url, name) as client:
        for values in (texts, np.array(texts, dtype=object), np.array(texts[1:2]), np.array([encoded[1]]), encoded):
            expected = encoded if len(values) > 1 else encoded[1:2]
            assert client.infer_sample(values)["y"].tolist() == expected
        assert client.infer_sample("Grüße")["y"].tolist() == ["Grüße".encode()]
        with pytest.raises(PyTritonClientValueError, match="holds 1, which is neither str nor bytes"):
            client.infer_sample(["a", 1])
        with pytest.raises(PyTritonClientValueError, match="cannot be encoded as UTF-8"):
            client.infer_sample("\ud800")


class WithArray:
    """A tensor of a library that knows ``__array__``."""

    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return self._array


class WithDlpack:
    """A tensor of a library that knows DLPack."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **arguments):
        return self._array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


@every_kind
def test_tensors_of_other_libraries(client):
    ones = np.ones(3, np.float32)
    response = client.infer_sample(WithDlpack(ones), WithArray(ones))
    assert response["add"].tolist() == [2, 2, 2]


@every_kind
def test_dtypes_are_converted_only_on_request(triton, name, kind, url):
    bind_floats(triton, name, echo, config=config_for(kind))
    with open_client(kind, url, name) as strict, open_client(kind, url, name, convert_dtypes=True) as lenient:
        with pytest.raises(PyTritonClientValueError, match=r"has dtype int16; use .*, or convert_dtypes=True"):
            strict.infer_sample(np.int16([1]))
        assert lenient.infer_sample(np.int16([1]))["y"].tolist() == [1]
        for client in (strict, lenient):
            with pytest.raises(PyTritonClientValueError, match="has dtype float64; if that loses nothing"):
                client.infer_sample(np.float64([1]))


@every_kind
def test_an_optional_input_may_be_left_out(triton, name, kind, url):
    inputs = [Tensor((1,), np.float32, "x"), Tensor((1,), np.float32, "bias", optional=True)]

    @sample
    def add(x, bias=None):
        return {"y": x if bias is None else x + bias}

    triton.bind(name, add, inputs, [Tensor((1,), np.float32, "y")], config=config_for(kind))
    with open_client(kind, url, name) as client:
        assert client.infer_sample(1)["y"] == 1
        assert client.infer_sample(x=1, bias=None)["y"] == 1
        assert client.infer_sample(1, 2)["y"] == 3


@pytest.fixture(scope="module")
def forwarding():
    """A server that tells models of headers."""
    pattern = "x-.*"
    with open_triton(http_header_forward_pattern=pattern, grpc_header_forward_pattern=pattern) as triton:
        triton.run()
        yield triton


@every_kind
def test_parameters_headers_and_request_id_reach_the_model(kind, protocol, forwarding, name):
    seen = []

    def keep(requests):
        seen.extend(requests)
        return echo(requests)

    bind_floats(forwarding, name, keep, config=config_for(kind))
    parameters = {"text": "a", "whole": 3, "part": 0.5, "flag": True, "numpy": np.int64(4)}
    headers = {"X-Number": 5, "x-part": 0.5, "x-text": "b"}
    with open_client(kind, url_of(forwarding, protocol), name) as client:
        client.infer_sample([1], parameters=parameters, headers=headers, request_id="order-66")
    (request,) = seen
    assert request.request_id == "order-66"
    forwarded = {key: value for key, value in request.parameters.items() if key not in parameters}
    assert {key: request.parameters[key] for key in parameters} == parameters
    assert {key.lower(): value for key, value in forwarded.items()} == {"x-number": "5", "x-part": "0.5", "x-text": "b"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parameters": {"a": None}}, "Parameter 'a' is None; give a string, a number or a boolean"),
        ({"parameters": {"a": [1]}}, "Parameter 'a'"),
        ({"parameters": {"priority": 1}}, "reserved parameter and cannot be specified; use the argument priority"),
        ({"parameters": {"timeout": 1}}, "reserved parameter and cannot be specified; use the argument timeout_s"),
        ({"headers": {"a": None}}, "Header 'a' is None"),
        ({"headers": {"a": "b\r\nc: d"}}, "Header 'a'"),
        ({"headers": {"a b": "c"}}, "Header 'a b' has a name that cannot be sent"),
        ({"outputs": []}, "No output is requested"),
        ({"outputs": 3}, "outputs is 3; give a list of names"),
        ({"request_id": 7}, "request_id is 7"),
        ({"priority": -1}, "priority is -1"),
        ({"priority": True}, "priority is True"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"timeout_s": float("nan")}, "timeout_s is nan"),
    ],
    ids=repr,
)
def test_options_that_cannot_be_sent(client, options, message):
    with pytest.raises(PyTritonClientValueError, match=message):
        client.infer_sample([1], [2], **options)


def test_a_binary_header_of_grpc(triton, name, kind):
    bind_floats(triton, name, echo)
    with (
        open_client(kind, url_of(triton, "grpc"), name) as client,
        pytest.raises(PyTritonClientValueError, match="Header 'x-bin' would be binary in gRPC"),
    ):
        client.infer_sample([1], headers={"X-Bin": "a"})


@every_kind
def test_a_reserved_parameter_is_refused_before_anything_is_sent(kind, protocol):
    """The port is closed, which the client does not notice."""
    with open_client(kind, f"{protocol}://127.0.0.1:1", "any") as client:
        for name in ("priority", "timeout", "sequence_id", "binary_data_output", "triton_any", "pytriton_callers"):
            for infer in (client.infer_sample, client.infer_batch):
                with pytest.raises(PyTritonClientInputError, match=f'Parameter "{name}" is a reserved parameter'):
                    infer([1], parameters={name: 1})


def test_an_input_takes_precedence_over_an_option_of_its_name(triton, name, kind, url):
    names = ("outputs", "priority", "request_id", "timeout_s")

    @batch
    def total(**inputs):
        return {"y": sum(inputs.values())}

    triton.bind(name, total, [Tensor((1,), np.int32, each) for each in names], [Tensor((1,), np.int32, "y")])
    with open_client(kind, url, name) as client:
        assert client.infer_sample(**dict.fromkeys(names, 2), parameters={"a": 1})["y"] == [8]
        assert client.infer_batch(**{each: np.int32([[1], [2]]) for each in names})["y"].tolist() == [[4], [8]]


def test_a_request_of_higher_priority_goes_first(triton, name, url):
    order = []
    entered, gate = threading.Event(), threading.Event()

    def note(requests):
        entered.set()
        assert gate.wait(30)
        order.extend(float(request["x"][0, 0]) for request in requests)
        return echo(requests)

    batcher = DynamicBatcher(priority_levels=2, default_priority_level=2)
    bind_floats(triton, name, note, config=ModelConfig(max_batch_size=1, batcher=batcher))
    with FuturesModelClient(url, name) as client:
        first = client.infer_sample([0])
        assert entered.wait(30)
        low = [client.infer_sample([number], priority=2) for number in (1, 2)]
        wait_until(lambda: pending(triton, name) >= 2)
        high = client.infer_sample([3], priority=1)
        wait_until(lambda: pending(triton, name) >= 3)
        gate.set()
        for future in (first, *low, high):
            future.result(30)
    assert order.index(3) < order.index(2)


def pending(triton, name):
    return metrics_of(triton, name)["nv_inference_pending_request_count"]


def test_the_server_refuses_requests_that_exceed_their_queue_timeout(triton, name, kind, url):
    seen, entered, gate = [], threading.Event(), threading.Event()

    def note(requests):
        seen.extend(float(request["x"][0, 0]) for request in requests)
        entered.set()
        assert gate.wait(30)
        return echo(requests)

    policy = QueuePolicy(default_timeout_microseconds=60_000_000, allow_timeout_override=True)
    config = ModelConfig(max_batch_size=1, batcher=DynamicBatcher(default_queue_policy=policy))
    bind_floats(triton, name, note, config=config)
    with open_client(kind, url, name) as client, FuturesModelClient(url, name) as other:
        held = other.infer_sample([1])
        assert entered.wait(30)
        with pytest.raises(PyTritonClientTimeoutError):
            client.infer_sample([2], timeout_s=0.2)
        time.sleep(0.2)  # the server's own clock started when the request arrived there
        gate.set()
        held.result(30)
        client.infer_sample([3])
    assert seen == [1, 3]


def test_a_response_that_takes_too_long(triton, name, kind, url):
    entered, gate = held_model(triton, name)
    with open_client(kind, url, name, inference_timeout_s=0.4) as client:
        with pytest.raises(PyTritonClientTimeoutError, match=r"did not respond within 0\.[34]"):
            client.infer_sample([1])
        assert entered.wait(10)
        gate.set()
        assert client.infer_sample([2], timeout_s=30)["y"] == [2]
