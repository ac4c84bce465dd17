"""Helpers for custom decorators."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from pytriton.decorators import (
    ModelConfigDict,
    convert_output,
    get_inference_request_batch_size,
    get_model_config,
    get_triton_context,
)
from pytriton.exceptions import PyTritonContextError, PyTritonValidationError
from pytriton.model_config import ModelSpec, Tensor
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig
from pytriton.proxy import context
from pytriton.proxy.context import MODEL

ONES = np.ones((2, 1), np.float32)
SPEC = ModelSpec.create("Model", [], [Tensor((1,), np.float32, "y"), Tensor((1,), np.float32, "z")])
REPORTED = TritonModelConfig("Model", outputs=[TensorSpec(name, (1,), np.float32) for name in "yz"])


@pytest.fixture
def in_call():
    token = MODEL.set(SPEC)
    yield
    MODEL.reset(token)


@pytest.mark.parametrize("model", [SPEC, REPORTED])
@pytest.mark.parametrize("outputs", [[ONES, ONES], (ONES, ONES), {"y": ONES, "z": ONES}])
def test_outputs_by_name(outputs, model):
    assert list(convert_output(outputs, model_config=model)) == ["y", "z"]


def test_the_model_is_known_during_a_call(in_call):
    assert list(convert_output([ONES, ONES], print, None)) == ["y", "z"]
    assert get_model_config(print, None) is SPEC
    assert get_triton_context(print, None).model_config is SPEC


@pytest.mark.parametrize(
    ("outputs", "message"),
    [([ONES], "there are 1 outputs, but the model has 2"), (ONES, "outputs are of type ndarray; return a dictionary")],
)
def test_outputs_without_names(outputs, message):
    with pytest.raises(PyTritonValidationError, match=message):
        convert_output(outputs, model_config=SPEC)


@pytest.mark.parametrize("helper", [get_triton_context, get_model_config])
def test_outside_of_a_call_there_is_no_context(helper):
    with pytest.raises(PyTritonContextError, match="known only during a call"):
        helper(print, None)


def test_rows_of_a_request():
    assert get_inference_request_batch_size({"x": ONES}) == 2


@pytest.fixture
def bound(monkeypatch):
    """The inference callables that this process seems to serve."""
    bound = weakref.WeakSet()
    monkeypatch.setattr(context, "BOUND", bound)
    return bound


def test_models_are_found_by_name_or_callable(bound):
    configs = ModelConfigDict({"Model": SPEC})
    assert configs["Model"] is configs.get("Model") is SPEC
    for key in ("Other", print):
        assert key not in configs
        with pytest.raises(KeyError):
            configs[key]
    configs[print] = SPEC
    assert configs[print] is configs.get(print) is SPEC
    assert dict(configs) == {print: SPEC}
    del configs[print]
    assert len(configs) == 0


def test_the_models_of_this_process_are_listed_by_their_callables(bound):
    class Served:
        def __init__(self, infer_func, spec):
            self.infer_func, self.spec = infer_func, spec

    class Unhashable:
        __hash__ = None

        def __call__(self, requests):
            return requests

    other, infer_func = ModelSpec.create("Other", SPEC.inputs, SPEC.outputs), Unhashable()
    instances = [Served(print, other), Served(print, other), Served(infer_func, SPEC)]
    for each in instances:
        bound.add(each)
    configs = ModelConfigDict({"Model": SPEC})
    for key, spec in ((print, other), (infer_func, SPEC)):
        assert key in configs
        assert key in list(configs)
        assert configs.get(key) is configs[key] is spec
    assert len(configs) == len(configs.keys()) == len(configs.values()) == 2
    assert "Other" in repr(configs)
