"""Mistakes in how decorators are written are found when they are applied, and keys that are not inputs at bind."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest

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
from pytriton.decorators.ordering import check_infer_func
from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.model_config import Tensor

X = Tensor(name="x", shape=(1,), dtype=np.float32)
OPTIONAL = Tensor(name="scale", shape=(1,), dtype=np.float32, optional=True)
HALF = np.array([0.5], np.float32)


def infer(x, **more):
    return {"y": x}


def own(function):
    """A user's own decorator, which may add inputs."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return call


NO_FUNCTION = {
    "a size for @batch": (
        lambda: batch(8),
        "@batch was given 8, which is not a function; put it above one, and pass its settings by name, as in "
        "@batch(max_batch_size=8).",
    ),
    "@sample": (lambda: sample("x"), "@sample was given 'x', which is not a function; put it above one, and pass"),
    "@pad_batch": (lambda: pad_batch(8), "@pad_batch was given 8, which is not a function; put it above one."),
    "@group_by_keys": (lambda: group_by_keys("x"), "@group_by_keys was given 'x', which is not a function; put it"),
    "@triton_context": (lambda: triton_context(1), "@triton_context was given 1, which is not a function; put it"),
    "below @group_by_values": (
        lambda: group_by_values("x")(3),
        "@group_by_values was given 3, which is not a function",
    ),
    "a size that is text": (lambda: batch(max_batch_size="8"), "@batch: max_batch_size is '8'; use an integer from 1"),
    "a size of 0": (lambda: batch(max_batch_size=0), "@batch: max_batch_size is 0; use an integer from 1 up."),
    "a delay that is text": (
        lambda: batch(max_queue_delay_microseconds="1"),
        "@batch: max_queue_delay_microseconds is '1'; use an integer from 0 up, not text.",
    ),
    "a function for a key": (lambda: first_value(infer), '; use names of inputs, as in first_value("temperature").'),
    "a class that pads": (
        lambda: group_by_values("x", pad_fn=ConstantPadder),
        "pad_fn=ConstantPadder, which is not a function that pads; use an object, such as pad_fn=ConstantPadder(0).",
    ),
    "a value that pads": (lambda: group_by_values("x", pad_fn=0), "pad_fn=0, which is not a function that pads; use"),
}


@pytest.mark.parametrize("mistake", NO_FUNCTION)
def test_a_mistake_is_reported_where_the_decorator_is_written(mistake):
    write, message = NO_FUNCTION[mistake]
    with pytest.raises(PyTritonBadParameterError, match=re.escape(message)):
        write()


@pytest.mark.parametrize(("above", "below"), [(batch, batch), (batch, sample), (sample, batch)])
def test_two_decorators_that_make_arrays_are_refused(above, below):
    with pytest.raises(PyTritonValidationError, match="both turn a list of requests into arrays; keep one of them"):
        above(below(infer))


@pytest.mark.parametrize("function", [infer, group_by_values("k")(infer)], ids=["directly", "above another one"])
def test_an_unknown_key_of_group_by_values_is_refused_at_bind(model, function):
    grouped = batch(group_by_values("x", "X")(function))
    with pytest.raises(
        PyTritonBadParameterError,
        match=r"^Model 'M': @group_by_values has 'X', and the inputs are 'x'; use names of inputs",
    ):
        check_infer_func(grouped, model(inputs=(X,)))


def test_an_unknown_key_of_first_value_is_warned_about_at_bind(model, caplog):
    check_infer_func(batch(first_value("x", "scale")(infer)), model(inputs=(X,)))
    assert "Model 'M': @first_value has 'scale', and the inputs are 'x'; use names of inputs" in caplog.text
    caplog.clear()
    check_infer_func(group_by_keys(batch(first_value("x", "scale")(infer))), model(inputs=(X, OPTIONAL)))
    assert not caplog.text


@pytest.mark.parametrize(
    "function",
    [
        batch(own(group_by_values("k")(infer))),
        own(batch(own(group_by_values("k")(infer)))),
        functools.partial(batch(group_by_values("k")(infer)), k=HALF),
    ],
    ids=["below a decorator", "between two", "in a partial"],
)
def test_keys_that_custom_code_may_add_are_accepted(model, function):
    check_infer_func(function, model(inputs=(X,)))


def test_a_default_of_a_required_input_is_warned_about_at_bind(model, caplog):
    check_infer_func(fill_optionals(x=HALF)(batch(infer)), model(inputs=(X,)))
    assert "fill_optionals has a default for 'x', which is not optional, so that Triton refuses requests" in caplog.text
    caplog.clear()
    check_infer_func(fill_optionals(scale=HALF)(batch(infer)), model(inputs=(X, OPTIONAL)))
    assert not caplog.text


def test_the_error_for_a_missing_input_suggests_fill_optionals():
    with pytest.raises(PyTritonValidationError, match=r"put @fill_optionals\(scale=\.\.\.\) above @batch$"):
        group_by_values("scale")(infer)(x=np.ones((1, 1)))


def test_optional_inputs_that_may_split_batches_are_warned_about_at_bind(model, caplog):
    check_infer_func(batch(infer), model(inputs=(X, OPTIONAL)))
    assert (
        "Model 'M': requests with and without the optional input 'scale' fail if they are in one batch" in caplog.text
    )


@pytest.mark.parametrize(
    "function",
    [
        group_by_keys(batch(infer)),
        fill_optionals(scale=HALF)(batch(infer)),
        sample(infer),
        own(batch(infer)),
        lambda requests: requests,
    ],
    ids=["groups", "defaults", "samples", "a user's own decorator", "requests"],
)
def test_harmless_optional_inputs_are_not_warned_about(model, caplog, function):
    check_infer_func(function, model(inputs=(X, OPTIONAL)))
    check_infer_func(batch(infer), model(inputs=(X, OPTIONAL), max_batch_size=1))
    check_infer_func(batch(infer), model(inputs=(X, OPTIONAL), batching=False))
    assert not caplog.text
