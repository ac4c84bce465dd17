"""The parameters of functions are compared with a model's inputs when they are bound."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest
import wrapt

from pytriton.decorators import (
    batch,
    fill_optionals,
    first_value,
    group_by_keys,
    group_by_values,
    pad_batch,
    sample,
    triton_context,
)
from pytriton.decorators.parameters import check_parameters
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config import Tensor
from pytriton.model_config.model_spec import ModelSpec


def tensor(name, optional=False):
    return Tensor(name=name, shape=(-1,), dtype=np.float32, optional=optional)


def model(*inputs):
    tensors = [each if isinstance(each, Tensor) else tensor(each) for each in inputs]
    return ModelSpec.create("Model", tensors, [tensor("y")])


AB = model("a", "b")
WITH_OPTIONAL = model("a", tensor("b", optional=True))


def timed(function):
    """A user's own decorator."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return call


def renaming(function):
    @functools.wraps(function)
    def call(a, b):
        return function(x=a, z=b)

    return call


@wrapt.decorator
def traced(wrapped, instance, args, kwargs):
    return wrapped(*args, **kwargs)


class Adder:
    @batch
    def __call__(self, a, b): ...

    @batch
    def add(self, a, b): ...

    @batch
    @classmethod
    def add_for_class(cls, a, b): ...

    @staticmethod
    @batch
    def add_alone(a, b): ...

    @sample
    @triton_context
    def add_in_context(self, a, b, triton_context): ...

    def infer(self, requests): ...


class Callable:
    def __call__(self, a, b): ...


def add(a, b): ...


def add_requests(requests): ...


async def add_later(a, b): ...


def count(a, b):
    yield


FITTING = {
    "a function": batch(add),
    "below @sample": sample(add),
    "a coroutine function": batch(add_later),
    "a generator function": batch(count),
    "keyword-only": batch(lambda *, a, b: None),
    "any inputs": batch(lambda **inputs: None),
    "the rest of the inputs": batch(lambda b, **rest: None),
    "another parameter that has a default": batch(lambda a, b, c=None: None),
    "a partial": batch(functools.partial(lambda a, b, scale: None, scale=2)),
    "a partial of positions": batch(functools.partial(lambda scale, a, b: None, 2)),
    "a partial above": functools.partial(batch(lambda a, b, scale: None), scale=2),
    "a method": Adder().add,
    "a static method": Adder.add_alone,
    "a callable object": Adder(),
    "a callable object below": batch(Callable()),
    "a method with a context": Adder().add_in_context,
    "the context below": batch(triton_context(lambda a, b, triton_context: None)),
    "the context above": triton_context(batch(lambda a, b, triton_context: None)),
    "all decorators": fill_optionals(a=np.float32([1]))(
        group_by_keys(batch(group_by_values("a")(pad_batch(first_value("a")(add)))))
    ),
    "a user's own decorator": batch(timed(add)),
    "a user's own decorator that renames": batch(renaming(lambda x, z: None)),
    "a user's own decorator above": timed(batch(lambda x, z: None)),
    "a decorator of wrapt": batch(traced(lambda x, z: None)),
    "a built-in function without a signature": batch(getattr),
    "requests": add_requests,
    "requests by any name": lambda many: None,
    "requests and more": lambda requests, more=None: None,
    "requests by position": lambda *args: None,
    "requests of a method": Adder().infer,
    "requests of a partial": functools.partial(lambda scale, requests: None, 2),
    "requests with a context": triton_context(lambda requests, triton_context: None),
    "requests below @group_by_keys": group_by_keys(add_requests),
    "requests below a user's own decorator": timed(add),
    "any call": lambda *args, **kwargs: None,
}


@pytest.mark.parametrize("kind", FITTING)
def test_matching_parameters(kind):
    check_parameters(FITTING[kind], AB)


def test_deferred_responses():
    def infer(requests, respond): ...

    infer._pytriton_deferred = True
    check_parameters(infer, AB)


@pytest.mark.parametrize(
    "function",
    [lambda a, b=None: None, lambda a, b: None, lambda a, **rest: None],
    ids=["with a default", "required", "among others"],
)
def test_an_optional_input(function):
    check_parameters(group_by_keys(batch(function)), WITH_OPTIONAL)


class WrongMethod:
    @batch
    def add(self, a, c): ...

    @sample
    def __call__(self, a, c): ...


SIDES = "takes 'a', 'c', and the inputs are 'a', 'b': 'c' is not an input, and 'b' is not a parameter."
WRONG = {
    "another name": (batch(lambda a, c: None), SIDES),
    "below @sample": (sample(lambda a, c: None), SIDES),
    "keyword-only": (batch(lambda *, a, c: None), SIDES),
    "a method": (WrongMethod().add, f"WrongMethod.add() below @batch {SIDES}"),
    "a callable object": (WrongMethod(), f"WrongMethod.__call__() below @sample {SIDES}"),
    "below other decorators": (
        fill_optionals(a=np.float32([1]))(group_by_keys(batch(pad_batch(lambda a, c: None)))),
        SIDES,
    ),
    "a partial": (
        batch(functools.partial(lambda a, c, scale: None, scale=1)),
        "takes 'a', 'c', 'scale', and the inputs are 'a', 'b': 'c' is not an input, and 'b' is not a parameter.",
    ),
    "one too few": (batch(lambda a: None), "takes 'a', and the inputs are 'a', 'b': 'b' is not a parameter."),
    "one too many": (
        batch(lambda a, b, c: None),
        "takes 'a', 'b', 'c', and the inputs are 'a', 'b': 'c' is not an input. Name the parameters like the inputs, "
        "or take the inputs as **inputs.",
    ),
    "none": (
        batch(lambda: None),
        "takes no parameters, and the inputs are 'a', 'b': 'a' is not a parameter, and 'b' is not a param",
    ),
    "the method of a class": (
        WrongMethod.add,
        "WrongMethod.add() below @batch takes 'self', so it is the method of a class; bind that of an object, such as "
        "WrongMethod().add.",
    ),
    "more than the rest": (
        batch(lambda c, **rest: None),
        "takes 'c', and the inputs are 'a', 'b': 'c' is not an input.",
    ),
    "by position": (batch(lambda a, b, /: None), "takes 'a', 'b' by position only, and inputs are passed by name"),
    "requests": (
        batch(lambda requests: None),
        "takes 'requests', and the inputs are 'a', 'b': 'requests' is not an input, 'a' is not a parameter, and 'b' is",
    ),
    "a context that nobody passes": (
        batch(lambda a, b, triton_context: None),
        "takes 'triton_context'; put @triton_context above it.",
    ),
    "a context that nobody takes": (
        batch(triton_context(add)),
        "add() below @batch is called with 'triton_context', but has no such parameter; add it, or remove @tri",
    ),
    "a keyword that nobody takes": (
        functools.partial(batch(add), scale=2),
        "takes 'a', 'b', and the inputs are 'a', 'b': 'scale' is not a parameter.",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_mismatched_parameters(kind):
    infer_func, message = WRONG[kind]
    with pytest.raises(PyTritonBadParameterError, match=rf"^Model 'Model': .*{re.escape(message)}"):
        check_parameters(infer_func, AB)


def test_an_optional_input_whose_parameter_has_no_default_is_warned_about(caplog):
    check_parameters(group_by_keys(batch(lambda a, b: None)), WITH_OPTIONAL)
    assert "has no default for its parameter 'b', an optional input, and fails for requests without it" in caplog.text
    assert "Write b=None, or put @fill_optionals(b=...) above @batch." in caplog.text


@pytest.mark.parametrize(
    "infer_func",
    [
        group_by_keys(batch(lambda a, b=None: None)),
        fill_optionals(b=np.ones(1, np.float32))(batch(lambda a, b: None)),
        group_by_keys(batch(lambda **inputs: None)),
        functools.partial(group_by_keys(batch(lambda a, b: None)), b=None),
    ],
)
def test_an_optional_input_that_always_has_a_value_is_fine(infer_func, caplog):
    check_parameters(infer_func, WITH_OPTIONAL)
    assert not caplog.records


def test_an_unused_optional_input_is_warned_about(caplog):
    check_parameters(group_by_keys(batch(lambda a: None)), WITH_OPTIONAL)
    assert "below @batch has no parameter for the optional input 'b'" in caplog.text


def test_an_input_may_have_the_usual_name_of_a_list_of_requests():
    check_parameters(lambda inputs: None, model("inputs"))


UNDECORATED = {
    "arrays": add,
    "arrays of a coroutine function": add_later,
    "arrays of a generator function": count,
    "arrays of a callable object": Callable(),
    "arrays of other names": lambda x, z: None,
    "arrays by name": lambda *, a, b: None,
    "only inputs": lambda **inputs: None,
    "nothing": lambda: None,
    "one input": lambda a: None,
    "an input and an option": lambda a, option=None: None,
    "below @group_by_keys": group_by_keys(add),
}


@pytest.mark.parametrize("kind", UNDECORATED)
def test_a_function_without_batch_or_sample(kind):
    with pytest.raises(
        PyTritonBadParameterError,
        match=r"^Model 'Model': .* takes .*, and is called with one list of requests. Put @batch above it, which",
    ):
        check_parameters(UNDECORATED[kind], AB)


def test_a_model_without_inputs():
    check_parameters(batch(lambda: None), model())
    with pytest.raises(PyTritonBadParameterError, match="takes 'a', and the model has no inputs: 'a' is not an input"):
        check_parameters(batch(lambda a: None), model())
