"""Request metadata in the inference callable, and the forms of its responses."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
from serving import (
    FLOATS_IN,
    FLOATS_OUT,
    NO_BATCHING,
    InferenceServerException,
    bind_floats,
    infer_json,
    json_floats,
    request_json,
)

from pytriton.decorators import batch, sample
from pytriton.model_config import ModelConfig, Tensor
from pytriton.proxy.types import Request

X = np.array([[1, 2, 3]], np.float32)


@pytest.fixture
def requests_of(triton, name):
    """Binds a model with two outputs that keeps its requests, and returns the list of them."""
    seen = []

    def keep(requests):
        seen.extend(requests)
        return [{"y": request["x"], "z": request["x"]} for request in requests]

    outputs = [*FLOATS_OUT, Tensor(name="z", shape=(-1,), dtype=np.float32)]
    triton.bind(name, keep, FLOATS_IN, outputs)
    return seen


def test_a_callable_without_decorator_gets_requests(requests_of, client, name):
    client.infer(name, {"x": X})

    (request,) = requests_of
    assert isinstance(request, Request)
    assert list(request) == ["x"]
    assert request.data["x"].tolist() == X.tolist()


def test_the_request_id_reaches_the_callable(requests_of, client, name):
    client.infer(name, {"x": X}, request_id="order-66 ✓")

    assert requests_of[0].request_id == "order-66 ✓"


def test_the_request_id_is_in_the_response(requests_of, triton, name):
    _, response = infer_json(triton, name, [json_floats([1])], id="abc")

    assert response["id"] == "abc"


def test_parameters_reach_the_callable_with_their_types(requests_of, client, name):
    parameters = {"text": "✓", "empty": "", "count": -(2**40), "yes": True, "no": False}

    client.infer(name, {"x": X}, parameters=parameters)

    received = requests_of[0].parameters
    assert received == parameters
    assert {key: type(value) for key, value in received.items()} == {
        key: type(value) for key, value in parameters.items()
    }


def test_fractions_among_the_parameters_reach_the_callable(requests_of, triton, name):
    status, response = infer_json(triton, name, [json_floats([1])], parameters={"temperature": 0.25})

    assert status == 200, response
    assert requests_of[0].parameters == {"temperature": 0.25}


def test_requested_outputs_reach_the_callable_and_only_they_are_returned(requests_of, client, name):
    received = client.infer(name, {"x": X}, outputs=["z"])

    assert requests_of[0].requested_output_names == ["z"]
    assert list(received) == ["z"]


def test_a_request_without_options_has_default_metadata(requests_of, triton, name):
    infer_json(triton, name, [json_floats([1])])

    (request,) = requests_of
    assert request.request_id is None
    assert not request.parameters
    assert request.requested_output_names == ["y", "z"]


def test_outputs_that_are_not_requested_need_not_be_returned(triton, client, name):
    def wanted_only(requests):
        return [dict.fromkeys(request.requested_output_names, request["x"]) for request in requests]

    triton.bind(name, wanted_only, FLOATS_IN, [*FLOATS_OUT, Tensor(name="z", shape=(-1,), dtype=np.float32)])

    assert client.infer(name, {"x": X}, outputs=["y"])["y"].tolist() == X.tolist()


def test_a_request_may_be_altered_by_the_callable(triton, http_client, name):
    def altered(requests):
        for request in requests:
            request["x"] = request["x"] + 1
            request["y"] = request.pop("x")
        return requests

    bind_floats(triton, name, altered)

    assert http_client.infer(name, {"x": X})["y"].tolist() == (X + 1).tolist()


OUTPUTS = {
    "list": lambda x: [x, x * 2],
    "tuple": lambda x: (x, x * 2),
    "dictionary": lambda x: {"y": x, "z": x * 2},
    "dictionary in another order": lambda x: {"z": x * 2, "y": x},
}


@pytest.mark.parametrize("form", OUTPUTS)
@pytest.mark.parametrize("decorator", [batch, sample, "plain"])
def test_outputs_may_be_a_list_a_tuple_or_a_dictionary(triton, http_client, name, form, decorator):
    def plain(requests):
        return [OUTPUTS[form](request["x"]) for request in requests]

    triton.bind(
        name,
        plain if decorator == "plain" else decorator(OUTPUTS[form]),
        FLOATS_IN,
        [*FLOATS_OUT, Tensor(name="z", shape=(-1,), dtype=np.float32)],
    )

    received = http_client.infer(name, {"x": X})

    assert received["y"].tolist() == X.tolist()
    assert received["z"].tolist() == (X * 2).tolist()


def test_responses_may_be_a_tuple(triton, http_client, name):
    bind_floats(triton, name, lambda requests: tuple([request["x"]] for request in requests))

    assert http_client.infer(name, {"x": X})["y"].tolist() == X.tolist()


def test_a_callable_may_return_its_requests(triton, client, name):
    bind_floats(triton, name, lambda requests: requests)

    assert client.infer(name, {"x": X})["y"].tolist() == X.tolist()


def test_client_and_callable_use_names_by_position(triton, client, name):
    triton.bind(
        name,
        batch(lambda **inputs: [inputs["INPUT_1"] + inputs["INPUT_2"]]),
        inputs=[Tensor(shape=(-1,), dtype=np.float32)] * 2,
        outputs=[Tensor(shape=(-1,), dtype=np.float32)],
    )

    assert client.infer(name, {"INPUT_1": X, "INPUT_2": X})["OUTPUT_1"].tolist() == (X + X).tolist()


def test_inputs_reach_the_callable_in_the_order_of_the_binding(triton, http_client, name):
    triton.bind(
        name,
        batch(lambda **inputs: [np.array([list(map(str, inputs))], object)]),
        inputs=[Tensor(name=each, shape=(-1,), dtype=np.float32) for each in ("c", "a", "b")],
        outputs=[Tensor(name="names", shape=(-1,), dtype=str)],
    )

    received = http_client.infer(name, {"b": X, "c": X, "a": X})

    assert received["names"].tolist() == [[b"c", b"a", b"b"]]


def test_sample_is_called_once_per_request_of_a_model_without_batching(triton, client, name):
    shapes = []

    @sample
    def double(x):
        shapes.append(x.shape)
        return {"y": x * 2}

    bind_floats(triton, name, double, config=NO_BATCHING)

    assert client.infer(name, {"x": X[0]})["y"].tolist() == (X[0] * 2).tolist()
    assert shapes == [(3,)]


class Model:
    """An object whose methods are inference callables."""

    factor = 3

    @batch
    def method(self, x):
        return [x * self.factor]

    def plain(self, requests):
        return [[request["x"] * self.factor] for request in requests]

    @batch
    def __call__(self, x):
        return [x * self.factor]

    @staticmethod
    @batch
    def static(x):
        return [x * 3]


@batch
def scaled(x, factor):
    return [x * factor]


CALLABLES = {
    "method": lambda: Model().method,
    "method without decorator": lambda: Model().plain,
    "static method": lambda: Model.static,
    "object": lambda: Model(),
    "partial": lambda: functools.partial(scaled, factor=3),
    "partial in a decorator": lambda: batch(functools.partial(lambda factor, x: [x * factor], 3)),
    "lambda": lambda: lambda requests: [[request["x"] * 3] for request in requests],
}


@pytest.mark.parametrize("kind", CALLABLES)
def test_any_callable_serves(triton, http_client, name, kind):
    bind_floats(triton, name, CALLABLES[kind]())

    assert http_client.infer(name, {"x": X})["y"].tolist() == (X * 3).tolist()


def test_optional_inputs_may_be_left_out(triton, client, name):
    seen = []

    def infer(requests):
        seen.extend(sorted(request) for request in requests)
        return [[request.get("a", request.get("b"))] for request in requests]

    triton.bind(
        name,
        infer,
        inputs=[Tensor(name=each, shape=(-1,), dtype=np.float32, optional=True) for each in "ab"],
        outputs=FLOATS_OUT,
    )

    client.infer(name, {"a": X, "b": X})
    assert client.infer(name, {"b": X})["y"].tolist() == X.tolist()
    assert seen == [["a", "b"], ["b"]]


def test_batch_leaves_absent_inputs_out(triton, client, name):
    triton.bind(
        name,
        batch(lambda a, b=None: [a if b is None else a + b]),
        inputs=[
            Tensor(name="a", shape=(-1,), dtype=np.float32),
            Tensor(name="b", shape=(-1,), dtype=np.float32, optional=True),
        ],
        outputs=FLOATS_OUT,
    )

    assert client.infer(name, {"a": X})["y"].tolist() == X.tolist()
    assert client.infer(name, {"a": X, "b": X})["y"].tolist() == (X + X).tolist()


def test_a_missing_input_is_refused(triton, client, name):
    triton.bind(name, lambda requests: requests, FLOATS_IN * 1 + [Tensor(name="w", shape=(1,), dtype=bool)], FLOATS_OUT)

    with pytest.raises(InferenceServerException, match=name):
        client.infer(name, {"x": X})


def test_kept_inputs_stay_intact(triton, http_client, name):
    kept = []

    def keep(requests):
        kept.extend(request["x"][:, 1:] for request in requests)
        return [[request["x"]] for request in requests]

    bind_floats(triton, name, keep, config=ModelConfig(max_batch_size=1))
    rng = np.random.default_rng(0)
    sent = [rng.random((1, size), np.float32) for size in rng.integers(2, 20_000, 60)]

    for each in sent:
        http_client.infer(name, {"x": each})

    assert all(np.array_equal(array, each[:, 1:]) for array, each in zip(kept, sent, strict=True))


def test_kept_inputs_outlive_the_server(name):
    from serving import client_of, running_triton

    kept = []

    @batch
    def keep(x):
        kept.append(x)
        return [x]

    with running_triton() as triton:
        bind_floats(triton, name, keep)
        triton.run()
        with client_of(triton) as client:
            client.infer(name, {"x": X})

    assert kept[0].tolist() == X.tolist()


def test_outputs_may_be_the_inputs_and_be_altered_afterwards(triton, http_client, name):
    array = np.ones((1, 3), np.float32)

    @batch
    def same_array(x):
        array[:] = x
        return [array]

    bind_floats(triton, name, same_array)

    first = http_client.infer(name, {"x": X})["y"]
    http_client.infer(name, {"x": X * 5})
    assert first.tolist() == X.tolist()


def test_a_large_body_declared_as_a_form_is_served(triton, name):
    bind_floats(triton, name, batch(lambda x: [x[:, :1]]))
    values = np.arange(4 << 20, dtype=np.float32)[np.newaxis]  # 16 MiB
    tensor = {"name": "x", "shape": values.shape, "datatype": "FP32", "parameters": {"binary_data_size": values.nbytes}}
    head = json.dumps({"inputs": [tensor]}).encode()

    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/x-www-form-urlencoded"}
    status, response = request_json(triton, "POST", f"/v2/models/{name}/infer", head + values.tobytes(), headers)

    assert status == 200, response
    assert response["outputs"][0]["data"] == [0]
