from __future__ import annotations

import inspect

import numpy as np
import pytest

from pytriton.decorators import batch, sample
from pytriton.exceptions import PyTritonArrayError, PyTritonValidationError
from pytriton.proxy.types import Request


def requests_of(*sizes):
    return [Request({"a": np.full((size, 2), size, np.float32)}) for size in sizes]


def test_batch_calls_once_with_all_rows():
    calls = []

    @batch
    def infer(a):
        calls.append(a.shape)
        return {"s": a.sum(axis=1, keepdims=True)}

    responses = infer(requests_of(1, 3, 2))

    assert calls == [(6, 2)]
    assert [each["s"].tolist() for each in responses] == [[[2]], [[6]] * 3, [[4]] * 2]


@pytest.mark.parametrize("form", [list, tuple])
def test_outputs_in_order_keep_their_order(form):
    responses = batch(lambda a: form([a, -a]))(requests_of(1, 2))

    assert [[array.shape for array in each] for each in responses] == [[(1, 2)] * 2, [(2, 2)] * 2]


@pytest.mark.parametrize("decorator", [batch, sample])
def test_dictionaries_are_accepted_as_requests(decorator):
    responses = decorator(lambda a: {"b": a})([{"a": np.ones((2, 2))}])

    assert responses[0]["b"].tolist() == np.ones((2, 2)).tolist()


def test_sample_calls_once_per_request():
    shapes = []

    @sample
    def infer(a):
        shapes.append(a.shape)
        return [a]

    responses = infer(requests_of(1, 3))

    assert shapes == [(1, 2), (3, 2)]
    assert [each[0].shape for each in responses] == shapes


class Model:
    factor = 2

    @batch
    def infer(self, a):
        return [a * self.factor]

    @sample
    def each(self, a):
        return [a * self.factor]

    @batch
    def __call__(self, a):
        return [a * self.factor]

    @batch
    @classmethod
    def of_class(cls, a):
        return [a * cls.factor]

    @staticmethod
    @batch
    def static(a):
        return [a * 2]


def test_batch_below_classmethod_is_refused_with_the_remedy():
    with pytest.raises(PyTritonValidationError, match="put it above @classmethod"):
        batch(lambda cls, a: [a])(Model, requests_of(1))


@pytest.mark.parametrize("name", ["infer", "each", "__call__", "of_class", "static"])
def test_methods_of_all_kinds_are_decorated(name):
    responses = getattr(Model(), name)(requests_of(2))

    assert responses[0][0].tolist() == [[4, 4], [4, 4]]


@pytest.mark.parametrize("decorator", [batch, sample])
def test_the_function_keeps_its_name_and_signature(decorator):
    @decorator
    def infer(a, b=None):
        """What it does."""

    assert (infer.__name__, infer.__doc__) == ("infer", "What it does.")
    assert list(inspect.signature(infer).parameters) == ["a", "b"]


def test_batch_refuses_outputs_with_other_rows():
    with pytest.raises(PyTritonArrayError, match="output 'b' has 2 rows, but the batch has 3"):
        batch(lambda a: {"b": a[1:]})(requests_of(1, 2))


@pytest.mark.parametrize("returned", [None, 3, "text", np.ones((3, 2))])
def test_batch_refuses_invalid_outputs(returned):
    with pytest.raises(PyTritonValidationError, match="return a dictionary of arrays"):
        batch(lambda a: returned)(requests_of(1, 2))


def test_batch_refuses_requests_that_differ():
    with pytest.raises(PyTritonArrayError, match="'a' differs in shape"):
        batch(lambda a: [a])([{"a": np.ones((1, 2))}, {"a": np.ones((1, 3))}])
    with pytest.raises(PyTritonValidationError, match="different inputs"):
        batch(lambda a, b=None: [a])([{"a": np.ones((1, 2))}, {"a": np.ones((1, 2)), "b": np.ones((1, 2))}])


def test_an_exception_of_the_function_is_raised():
    def fail(a):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        batch(fail)(requests_of(1))
