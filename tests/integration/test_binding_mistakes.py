"""Mistakes that bind refuses before anything is deployed, each with a sentence that says what to change."""

from __future__ import annotations

import re
import sys

import cloudpickle
import numpy as np
import pytest
from serving import FLOATS_IN, FLOATS_OUT, bind_floats, request_json, send_floats

from pytriton.decorators import batch, sample, triton_context
from pytriton.exceptions import PyTritonBadParameterError, PyTritonInvalidOperationError
from pytriton.model_config import Tensor
from pytriton.process import ProcessInstance

cloudpickle.register_pickle_by_value(sys.modules[__name__])
X, Y = FLOATS_IN[0], FLOATS_OUT[0]


def double(x):
    return {"y": x * 2}


def rename(z):
    return {"y": z}


class Renaming:
    @batch
    def __call__(self, z):
        return {"y": z}


MISTAKES = {
    "a parameter that is no input": (
        {"infer_func": batch(rename)},
        "rename() below @batch takes 'z', and the inputs are 'x': 'z' is no input, and 'x' is no parameter. Name",
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
        "double() below @batch is called with 'triton_context', and has no such parameter",
    ),
    "an input that is no list": ({"inputs": X}, "inputs is a Tensor, not a list; write inputs=[Tensor(...)]."),
    "an output that is no list": ({"outputs": Y}, "outputs is a Tensor, not a list; write outputs=[Tensor(...)]."),
    "a number of outputs": ({"outputs": 1}, "outputs is 1, not a list; write outputs=[Tensor(...)]."),
    "names of inputs": ({"inputs": ["x"]}, "input number 1 is 'x'; use a pytriton.model_config.Tensor."),
    "no function": ({"infer_func": None}, "infer_func is None"),
    "no function of an instance": ({"infer_func": [None]}, "infer_func is None, which is not callable"),
    "no instance": ({"infer_func": []}, "the number of instances is 0; use an integer from 1"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_is_refused_and_nothing_is_deployed(triton, name, kind):
    changed, message = MISTAKES[kind]
    arguments = {"infer_func": batch(double), "inputs": FLOATS_IN, "outputs": FLOATS_OUT, **changed}
    with pytest.raises(PyTritonBadParameterError, match=rf"^Model '{name}'.*{re.escape(message)}"):
        triton.bind(name, **arguments)
    assert request_json(triton, "GET", f"/v2/models/{name}")[0] == 404


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
