"""Custom decorators around those of this package: their arguments, and the effect of their changes."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import serving
import wrapt

from pytriton.decorators import batch, fill_optionals, get_model_config, group_by_keys, sample, triton_context
from pytriton.model_config import Tensor

X = [Tensor(name="x", dtype=np.float32, shape=(-1,))]
Y = [Tensor(name="y", dtype=np.float32, shape=(-1,))]
Z = [Tensor(name="z", dtype=np.float32, shape=(-1,))]
ONE = np.ones(2, np.float32)


@pytest.fixture(scope="module")
def triton():
    with serving.running_triton() as triton:
        triton.run()
        yield triton


def result_of(triton, name, infer, outputs=Y, **inputs):
    triton.bind(name, infer, X, outputs)
    response = triton.client(name).infer_sample(**(inputs or {"x": ONE}))
    return {key: value.tolist() for key, value in response.items()}


def around(edit):
    """A user's decorator that changes requests or responses."""

    def decorator(function):
        @functools.wraps(function)
        def wrapper(requests):
            assert type(requests) is list
            return edit(function, requests)

        return wrapper

    return decorator


def add_100(function, requests):
    responses = function(requests)
    assert isinstance(responses, list)
    for number in range(len(responses)):
        responses[number]["y"] = responses[number]["y"] + 100
    return responses


def add_in_place(function, requests):
    responses = function(requests)
    for response in responses:
        response["y"] += 100
    return responses


def make_anew(function, requests):
    return [{name: array + 100 for name, array in response.items()} for response in function(requests)]


def add_output(function, requests):
    responses = function(requests)
    for response in responses:
        response["z"] = response["y"] * 10
    return responses


double = {
    "batch": lambda edit: edit(batch(lambda x: {"y": x * 2})),
    "batch with a list": lambda edit: edit(batch(lambda x: [x * 2])),
    "sample with a tuple": lambda edit: edit(sample(lambda x: (x * 2,))),
    "below group_by_keys": lambda edit: group_by_keys(edit(batch(lambda x: {"y": x * 2}))),
    "above group_by_keys": lambda edit: edit(group_by_keys(batch(lambda x: {"y": x * 2}))),
    "above fill_optionals": lambda edit: edit(fill_optionals(x=ONE)(batch(lambda x: {"y": x * 2}))),
    "above triton_context": lambda edit: edit(triton_context(batch(lambda x, triton_context: {"y": x * 2}))),
}


@pytest.mark.parametrize("place", double)
@pytest.mark.parametrize("edit", [add_100, add_in_place, make_anew])
def test_responses_are_edited(triton, name, place, edit):
    assert result_of(triton, name, double[place](around(edit))) == {"y": [102, 102]}


@pytest.mark.parametrize("place", ["batch", "group_by_keys", "fill_optionals", "triton_context"])
def test_changes_in_place_by_a_function_do_not_affect_the_requests(triton, name, place):
    def infer(x, **_):
        x *= 2
        return {"y": x}

    def add_input(function, requests):
        responses = function(requests)
        return [{"y": response["y"] + request["x"]} for response, request in zip(responses, requests, strict=True)]

    above = {"group_by_keys": group_by_keys, "fill_optionals": fill_optionals(), "triton_context": triton_context}
    decorated = batch(infer)
    assert result_of(triton, name, around(add_input)(above.get(place, lambda each: each)(decorated))) == {"y": [3, 3]}


def test_outputs_are_added(triton, name):
    infer = double["batch"](around(add_output))
    assert result_of(triton, name, infer, Y + Z) == {"y": [2, 2], "z": [20, 20]}


def test_a_custom_decorator_with_the_helpers_of_this_package(triton, name):
    seen = []

    @wrapt.decorator
    def watched(wrapped, instance, args, kwargs):
        seen.append(get_model_config(wrapped, instance).model_name)
        return wrapped(*args, **kwargs)

    @batch
    @watched
    def infer(x):
        return {"y": x}

    assert result_of(triton, name, infer) == {"y": [1, 1]}
    assert seen == [name]


def test_models_by_their_inference_callables(triton, name):
    @batch
    def other(x):
        return {"y": x}

    @batch
    @triton_context
    def infer(x, triton_context):
        configs = triton_context.model_configs
        for infer_func, model_name in ((infer, name), (other, f"{name}-other")):
            assert infer_func in configs
            assert infer_func in list(configs)
            assert configs[infer_func].model_name == configs.get(infer_func).model_name == model_name
        return {"y": x}

    triton.bind(f"{name}-other", other, X, Y)
    assert result_of(triton, name, infer) == {"y": [1, 1]}


def test_requests_without_parameters_have_an_empty_dictionary(triton, name):
    def infer(requests):
        return [{"y": request["x"] * request.parameters.get("factor", 3)} for request in requests]

    triton.bind(name, infer, X, Y)
    client = triton.client(name)
    assert client.infer_sample(ONE)["y"].tolist() == [3, 3]
    assert client.infer_sample(ONE, parameters={"factor": 5})["y"].tolist() == [5, 5]


def test_outputs_that_are_left_out_are_not_in_the_response(triton, name, caplog):
    def infer(requests):
        return [{"y": request["x"]} for request in requests]

    assert result_of(triton, name, infer, Y + Z) == {"y": [1, 1]}
    assert result_of(triton, f"{name}_2", batch(lambda x: {"y": x}), Y + Z) == {"y": [1, 1]}
    assert "did not return the output 'z'. The response lacks it." in caplog.text


@pytest.mark.parametrize("infer", [lambda requests: [{} for _ in requests], batch(lambda x: {})], ids=["list", "batch"])
def test_all_outputs_may_be_left_out(triton, name, infer, caplog):
    assert result_of(triton, name, infer) == {}
    assert "did not return the output 'y'. The response lacks it." in caplog.text


def test_a_model_without_outputs(triton, name):
    assert result_of(triton, name, lambda requests: [{} for _ in requests], []) == {}
