"""Callables that are pickled for another process, including decorators."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys

import cloudpickle
import numpy as np
import pytest
import wrapt

from pytriton.decorators import (
    ConstantPadder,
    batch,
    fill_optionals,
    first_value,
    group_by_keys,
    group_by_values,
    pad_batch,
    sample,
    triton_context,
)
from pytriton.decorators.ordering import Stage
from pytriton.model_config import Tensor
from pytriton.model_config.model_spec import ModelSpec
from pytriton.process.pickling import pickled
from pytriton.proxy.context import MODEL

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SPEC = ModelSpec.create("m", [Tensor((-1,), np.float32, "x", optional=True)], [Tensor((-1,), np.float32, "y")])
REQUESTS = [{"x": np.array([[3, 3]], np.float32)}]

ELSEWHERE = """
import pickle, sys
function, requests, spec = pickle.load(sys.stdin.buffer)
from pytriton.proxy.context import MODEL
MODEL.set(spec)
sys.stdout.buffer.write(pickle.dumps([dict(each) for each in function(requests)]))
"""


def elsewhere(function):
    """Has another process call a function with the requests."""
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], input=pickled((function, REQUESTS, SPEC)), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return pickle.loads(done.stdout)


def double(x):
    return {"y": x * 2}


@triton_context
def named(x, triton_context):
    return {"y": x * 2, "model": np.array([[triton_context.model_config.name]])}


class Model:
    @batch
    def __call__(self, x):
        return double(x)


shared = group_by_values("x")
FUNCTIONS = {
    "batch": batch(double),
    "sample": sample(lambda x: double(x)),
    "group_by_keys": group_by_keys(batch(double)),
    "group_by_values": batch(group_by_values("x", pad_fn=ConstantPadder(0))(double)),
    "pad_batch": batch(pad_batch(double)),
    "first_value": batch(first_value("x", strict=False)(lambda x: double(x[np.newaxis]))),
    "fill_optionals": fill_optionals(x=np.array([1], np.float32))(batch(double)),
    "triton_context": batch(named),
    "a decorator that was kept": batch(shared(double)),
    "an object": Model(),
    "a partial": functools.partial(batch(double)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_decorated_function_works_the_same_after_pickling(name):
    function = FUNCTIONS[name]
    token = MODEL.set(SPEC)
    try:
        expected = [dict(each) for each in function(REQUESTS)]
    finally:
        MODEL.reset(token)

    (received,), (wanted,) = elsewhere(function), expected

    assert received.keys() == wanted.keys()
    for key in wanted:
        np.testing.assert_array_equal(received[key], wanted[key])


def test_a_decorator_works_after_pickling():
    def make():
        @batch
        @group_by_values("x")
        def infer(x):
            return double(x)

        return infer

    (received,) = elsewhere(lambda requests: make()(requests))

    assert received["y"].tolist() == [[6, 6]]


def test_a_pickled_function_stays_decorated():
    received = pickle.loads(pickled(batch(lambda x: [x])))

    assert issubclass(type(received), Stage)
    assert issubclass(type(vars(pickle.loads(pickled(Model)))["__call__"]), Stage)


def test_a_function_that_refers_to_itself_can_be_pickled():
    def make():
        @batch
        def infer(x):
            return {"y": x} if infer is None else double(x)

        return infer

    (received,) = elsewhere(make())

    assert received["y"].tolist() == [[6, 6]]


def test_decorators_that_cannot_be_pickled_are_refused_rather_than_dropped():
    @wrapt.decorator
    def twice(wrapped, instance, args, kwargs):
        return wrapped(*args, **kwargs) * 2

    with pytest.raises(Exception, match=r"reduce|pickle|find|get local"):
        pickled(twice(lambda x: x))
