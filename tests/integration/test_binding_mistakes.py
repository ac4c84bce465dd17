"""Mistakes that bind refuses before anything is deployed, each with a sentence that says what to change."""

from __future__ import annotations

import re
import sys

import cloudpickle
import numpy as np
import pytest
from serving import FLOATS_IN, FLOATS_OUT, bind_floats, request_json, send_floats

from pytriton.decorators import batch, group_by_values, sample, triton_context
from pytriton.exceptions import PyTritonBadParameterError, PyTritonInvalidOperationError, PyTritonValidationError
from pytriton.model_config import ModelConfig, Tensor
from pytriton.process import ProcessInstance

cloudpickle.register_pickle_by_value(sys.modules[__name__])
X, Y = FLOATS_IN[0], FLOATS_OUT[0]


def double(x):
    return {"y": x * 2}


def rename(z):
    return {"y": z}


class Requests:
    def infer(self, requests): ...


class Renaming:
    @batch
    def __call__(self, z):
        return {"y": z}


class Estimator:
    """Has the methods of scikit-learn's estimators, and a repr of several lines, as a pipeline has."""

    def __repr__(self):
        return "Estimator(\n    depth=3)"

    def __iter__(self):
        return iter(())

    def get_params(self):
        return {}

    def predict(self, samples):
        return samples


class Module:
    """Is called as modules of PyTorch are, with any arguments."""

    __module__ = "torch.nn.modules.module"

    def __call__(self, *args, **kwargs):
        return args


MISTAKES = {
    "a parameter that is not an input": (
        {"infer_func": batch(rename)},
        "rename() below @batch takes 'z', and the inputs are 'x': 'z' is not an input, and 'x' is not a parameter.",
    ),
    "the same below @sample": (
        {"infer_func": sample(rename)},
        "rename() below @sample takes 'z', and the inputs are 'x'",
    ),
    "no @batch": (
        {"infer_func": double},
        "double() takes 'x', and is called with one list of requests. Put @batch above it, which passes each input as",
    ),
    "one instance of several": ({"infer_func": [batch(double), batch(rename)]}, "rename() below @batch takes 'z'"),
    "a context that nobody takes": (
        {"infer_func": triton_context(batch(double))},
        "double() below @batch is called with 'triton_context', but has no such parameter",
    ),
    "an input that is not a list": ({"inputs": X}, "inputs is a Tensor, not a list; write inputs=[Tensor(...)]."),
    "an output that is not a list": ({"outputs": Y}, "outputs is a Tensor, not a list; write outputs=[Tensor(...)]."),
    "a number of outputs": ({"outputs": 1}, "outputs is 1, not a list; write outputs=[Tensor(...)]."),
    "a dictionary of inputs": ({"inputs": {"x": X}}, "inputs is {'x': Tensor("),
    "a name of outputs": ({"outputs": "y"}, "outputs is 'y', not a list; write outputs=[Tensor(...)]."),
    "a class": (
        {"infer_func": Renaming},
        "infer_func is the class Renaming; pass an object of it, such as Renaming().",
    ),
    "a class below @batch": ({"infer_func": batch(Requests)}, "infer_func is the class Requests; pass an object of it"),
    "the method of a class": (
        {"infer_func": Requests.infer},
        "Requests.infer() takes 'self', so it is the method of a class; bind that of an object, such as Requests()",
    ),
    "the method of a class below @batch": (
        {"infer_func": Renaming.__call__},
        "Renaming.__call__() below @batch takes 'self', so it is the method of a class; bind that of an object, such "
        "as Renaming().",
    ),
    "a number for a function": (
        {"infer_func": 3},
        "infer_func is 3, which is not callable; pass a function, or a list",
    ),
    "what a function returns": (
        {"infer_func": double(1)},
        "infer_func is {'y': 2}, which is not callable; pass a function itself, without calling it, or a list",
    ),
    "an estimator for a function": (
        {"infer_func": Estimator()},
        "infer_func is Estimator( depth=3), which is not callable; pass sklearn_model(...) of pytriton.adapters",
    ),
    "a method of an estimator": (
        {"infer_func": Estimator().predict, "inputs": None, "outputs": None},
        "pass sklearn_model(...) of pytriton.adapters, which serves such a model, or inputs=[Tensor(...)]",
    ),
    "a module of PyTorch": (
        {"infer_func": Module(), "inputs": None, "outputs": None},
        "pass torch_model(...) of pytriton.adapters, which serves such a model, or inputs=[Tensor(...)]",
    ),
    "tensors for a function": (
        {"infer_func": FLOATS_IN},
        "infer_func is a list of tensors; write bind('name', function, inputs=..., outputs=...).",
    ),
    "no outputs": (
        {"outputs": None},
        "there are inputs, but no outputs; pass outputs=[Tensor(...)], or complete the type",
    ),
    "no inputs": (
        {"inputs": None},
        "there are outputs, but no inputs; pass inputs=[Tensor(...)], or complete the type",
    ),
    "inputs without a name": (
        {"inputs": [Tensor((-1,), np.float32)]},
        "'INPUT_1' is not a parameter. Name the inputs like the parameters, Tensor(name='x', ...), or take",
    ),
    "settings in a dictionary": (
        {"config": {"max_batch_size": 8}},
        "config is {'max_batch_size': 8}; use ModelConfig(max_batch_size=...).",
    ),
    "strictness as text": ({"strict": "no"}, "strict is 'no'; use True or False."),
    "a key of @group_by_values that is not an input": (
        {"infer_func": batch(group_by_values("X")(lambda **inputs: inputs))},
        "@group_by_values has 'X', and the inputs are 'x'; use names of inputs, or add an input.",
    ),
    "names of inputs": ({"inputs": ["x"]}, "input number 1 is 'x'; use a pytriton.model_config.Tensor, as in"),
    "no function": ({"infer_func": None}, "infer_func is None"),
    "no function of an instance": ({"infer_func": [None]}, "infer_func has None as number 1, which is not callable"),
    "no instance": ({"infer_func": []}, "infer_func is an empty list; pass a function, or a list with one"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_is_refused_and_nothing_is_deployed(triton, name, kind):
    changed, message = MISTAKES[kind]
    arguments = {"infer_func": batch(double), "inputs": FLOATS_IN, "outputs": FLOATS_OUT, **changed}
    with pytest.raises(PyTritonBadParameterError, match=rf"^Model '{name}'.*{re.escape(message)}"):
        triton.bind(name, **arguments)
    assert request_json(triton, "GET", f"/v2/models/{name}")[0] == 404


@pytest.mark.parametrize("infer_func", [3, "double", [double, None]])
def test_what_is_not_callable_raises_the_error_of_nvidia_pytriton_too(triton, name, infer_func):
    with pytest.raises(PyTritonValidationError, match="which is not callable"):
        bind_floats(triton, name, infer_func)


def test_a_function_in_place_of_the_name_is_refused_with_the_right_order(triton):
    with pytest.raises(PyTritonBadParameterError) as caught:
        triton.bind(double, FLOATS_IN, FLOATS_OUT)
    assert caught.value.message == (
        "Model name is the function double; write the name before the function: bind('name', function, inputs=..., "
        "outputs=...)."
    )


def test_overridden_settings_of_a_decorator_are_warned_about(triton, name, caplog):
    bind_floats(triton, name, batch(max_batch_size=8)(double), config=ModelConfig(max_batch_size=2))
    assert f"Model '{name}': the settings of @batch are not used, because bind was given config=..." in caplog.text


def test_a_mistake_leaves_the_earlier_model_in_service(triton, name):
    bind_floats(triton, name, batch(double))
    with pytest.raises(PyTritonBadParameterError, match="takes 'z', and the inputs are 'x'"):
        bind_floats(triton, name, batch(rename))
    assert send_floats(triton, name, [1]) == [2]


def test_a_process_is_checked_when_its_factory_has_returned(triton, name):
    with pytest.raises(
        PyTritonInvalidOperationError, match=r"__call__\(\) below @batch takes 'z', and the inputs are 'x'"
    ):
        bind_floats(triton, name, ProcessInstance(Renaming))


@pytest.mark.parametrize("dtype", ["fp32", "FP32", "TYPE_FP32", "float32"])
def test_datatypes_by_any_of_their_names(triton, name, dtype):
    tensors = {each: [Tensor(name=each, shape=(-1,), dtype=dtype)] for each in "xy"}
    triton.bind(name, batch(double), tensors["x"], tensors["y"])
    assert send_floats(triton, name, [1.5]) == [3]


def test_text_by_the_name_of_its_datatype(triton, name, http_client):
    tensors = {each: [Tensor(name=each, shape=(-1,), dtype="bytes")] for each in "xy"}
    triton.bind(name, batch(lambda x: {"y": x}), tensors["x"], tensors["y"])
    assert http_client.infer(name, {"x": np.array([[b"a"]], object)})["y"].tolist() == [[b"a"]]
