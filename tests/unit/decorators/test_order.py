from __future__ import annotations

import functools
import inspect
import itertools

import numpy as np
import pytest
import wrapt

from pytriton import decorators
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
from pytriton.decorators.ordering import check_infer_func
from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.model_config import Tensor

pytestmark = pytest.mark.filterwarnings("error::FutureWarning")  # by which 3.13 announces what breaks in 3.14

ORDER = (
    r"the order, from top to bottom, is @fill_optionals, @group_by_keys, @batch or @sample, @group_by_values, "
    r"@pad_batch, @first_value"
)
ONE = np.ones((1, 1), np.float32)
TWO = np.ones((2, 1), np.float32)
INPUTS = (Tensor(name="x", shape=(1,), dtype=np.float32), Tensor(name="k", shape=(1,), dtype=np.float32, optional=True))

OF_REQUESTS = {"fill_optionals": fill_optionals(k=ONE[0]), "group_by_keys": group_by_keys}
UNPACKING = {"batch": batch, "sample": sample}
OF_ARRAYS = {"group_by_values": group_by_values("k"), "pad_batch": pad_batch}
LAST = {"first_value": first_value("k")}
ALL = {**OF_REQUESTS, **UNPACKING, **OF_ARRAYS, **LAST}


def subsets(names):
    return [chosen for count in range(len(names) + 1) for chosen in itertools.permutations(names, count)]


def stacked(names, function):
    for name in reversed(names):
        function = {**ALL, "triton_context": triton_context}[name](function)
    return function


def infer(x, k, triton_context=None):
    return {"y": x * k}


RIGHT = [
    (*above, unpacking, *below, *last)
    for above in subsets(OF_REQUESTS)
    for unpacking in UNPACKING
    for below in subsets(OF_ARRAYS)
    for last in subsets(LAST)
]


@pytest.mark.parametrize("names", RIGHT, ids="-".join)
def test_every_valid_order_computes_the_same(model, names):
    model(INPUTS)
    requests = [{"x": ONE * 2, "k": ONE}, {"x": ONE * 3, "k": ONE}, {"k": TWO, "x": TWO * 5}]

    responses = stacked(names, infer)(requests)

    assert [each["y"].tolist() for each in responses] == [[[2]], [[3]], [[5], [5]]]


@pytest.mark.parametrize("position", range(7))
def test_triton_context_may_stand_anywhere(model, position):
    model(INPUTS)
    names = ["fill_optionals", "group_by_keys", "batch", "group_by_values", "pad_batch", "first_value"]
    names.insert(position, "triton_context")
    seen = []

    def infer(x, k, triton_context):
        seen.append((k, len(triton_context.row_parameters) == len(x) == 4))
        return {"y": x * k}

    responses = stacked(names, infer)([{"x": ONE * 2}, {"x": ONE * 3, "k": ONE * 5}])

    assert [each["y"].item() for each in responses] == [2, 15]
    assert sorted(seen) == [(1, True), (5, True)]


WRONG = [
    *itertools.product(UNPACKING, {**OF_REQUESTS, **UNPACKING}),
    *itertools.product({**OF_REQUESTS}, OF_ARRAYS),
    *itertools.product({**OF_ARRAYS, **LAST}, {**OF_REQUESTS, **UNPACKING}),
    *itertools.product(LAST, OF_ARRAYS),
]


@pytest.mark.parametrize("between", [[], ["triton_context"]], ids=["directly", "with the context between"])
@pytest.mark.parametrize(("above", "below"), WRONG)
def test_a_wrong_order_is_refused_when_the_decorator_is_applied(above, below, between):
    inner = stacked([*between, below], infer)
    with pytest.raises(PyTritonValidationError, match=f"@{above} stands directly above @{below}, .*: {ORDER}"):
        ALL[above](inner)


class Model:
    @pad_batch
    def method(self, x):
        return [x]

    @classmethod
    @pad_batch
    def of_class(cls, x):
        return [x]

    @staticmethod
    @pad_batch
    def static(x):
        return [x]

    @pad_batch
    def __call__(self, x):
        return [x]


CALLABLES = {
    "method": Model().method,
    "class method": Model.of_class,
    "static method": Model.static,
    "object": Model(),
    "partial": functools.partial(Model().method),
    "with the context": triton_context(Model().method),
}


@pytest.mark.parametrize("kind", CALLABLES)
def test_a_wrong_order_is_detected_on_any_callable(kind):
    with pytest.raises(PyTritonValidationError, match="@group_by_keys stands directly above @pad_batch"):
        group_by_keys(CALLABLES[kind])


@pytest.mark.parametrize("kind", CALLABLES)
def test_a_missing_batch_is_detected_at_bind(model, kind):
    with pytest.raises(PyTritonValidationError, match=r"Model 'M': .* starts with @pad_batch, .* put @batch above it"):
        check_infer_func(CALLABLES[kind], model())


@pytest.mark.parametrize("names", [names for names in RIGHT if len(names) < 4], ids="-".join)
def test_valid_orders_may_be_bound(model, names):
    check_infer_func(stacked(names, infer), model(INPUTS))


@pytest.mark.parametrize("infer_func", [len, lambda requests: requests, Model, object(), first_value("k")(infer)])
def test_callables_without_decorators_may_be_bound(model, infer_func):
    check_infer_func(infer_func, model())


def test_invalid_defaults_are_detected_at_bind(model):
    @functools.wraps(infer)
    def own(requests):
        return decorated(requests)

    decorated = own.__wrapped__ = group_by_keys(fill_optionals(k=[1, 2])(batch(infer)))
    with pytest.raises(PyTritonBadParameterError, match="Model 'M': fill_optionals has a default for 'k' of dtype int"):
        check_infer_func(own, model(INPUTS))


@pytest.mark.parametrize("name", [*OF_REQUESTS, *UNPACKING])
@pytest.mark.parametrize("arguments", [(), (ONE,), ("requests",), ([ONE],)])
def test_decorators_of_requests_refuse_other_arguments(name, arguments):
    with pytest.raises(PyTritonValidationError, match=f"@{name} takes a list of requests, but was given .*{ORDER}"):
        ALL[name](infer)(*arguments)


@pytest.mark.parametrize("name", [*OF_REQUESTS, *UNPACKING])
def test_an_empty_list_of_requests_is_refused(name):
    with pytest.raises(PyTritonValidationError, match=f"@{name} was given an empty list"):
        ALL[name](infer)([])


@pytest.mark.parametrize("name", OF_ARRAYS)
def test_decorators_of_arrays_refuse_requests(name):
    with pytest.raises(PyTritonValidationError, match=f"@{name} takes arrays, but was given a list of 1: .*{ORDER}"):
        ALL[name](infer)([{"x": ONE}])


@wrapt.decorator
def own_wrapt(wrapped, instance, args, kwargs):
    return wrapped(*args, **kwargs)


def own_wraps(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize("own", [own_wrapt, own_wraps])
@pytest.mark.parametrize("position", range(5))
def test_custom_decorators_may_stand_anywhere(model, own, position):
    model(INPUTS)
    names = ["fill_optionals", "batch", "pad_batch", "triton_context"]
    function = stacked(names[:position], own(stacked(names[position:], infer)))

    check_infer_func(function, model(INPUTS))
    assert function([{"x": ONE * 3}, {"x": ONE * 4, "k": ONE * 2}])[1]["y"].tolist() == [[8]]


def test_a_custom_decorator_may_make_requests_of_arrays():
    @batch
    @own_wraps
    def infer(x):
        return decorated([{"x": row[None]} for row in x])[0]

    decorated = batch(lambda x: {"y": x})
    assert infer([{"x": ONE}])[0]["y"] == 1


def test_inputs_may_have_any_name():
    names = [
        "self",
        "cls",
        "args",
        "kwargs",
        "wrapped",
        "instance",
        "function",
        "call",
        "finish",
        "requests",
        "a b",
        "",
    ]

    @group_by_keys
    @batch
    @group_by_values("self")
    @first_value("wrapped")
    def infer(**inputs):
        return {name: np.ones((3, 1)) * len(inputs) for name in inputs}

    responses = infer([dict.fromkeys(names, np.ones((3, 1)))])

    assert list(responses[0]) == names
    assert len(sample(lambda **inputs: inputs)([dict.fromkeys(names, ONE)])[0]) == len(names)


@pytest.mark.parametrize("name", ALL)
def test_decorated_functions_keep_name_docstring_and_signature(name):
    def infer(x, k=1):
        """What it does."""

    decorated = ALL[name](infer)

    assert (decorated.__name__, decorated.__doc__) == ("infer", "What it does.")
    assert str(inspect.signature(decorated)) == "(x, k=1)"


PARAMETERS = {
    **{
        name: [("wrapper", None), ("enabled", None), ("adapter", None), ("proxy", wrapt.FunctionWrapper)]
        for name in ("batch", "sample", "group_by_keys", "triton_context", "pad_batch")
    },
    "group_by_values": [("keys", inspect.Parameter.empty), ("pad_fn", None)],
    "fill_optionals": [("defaults", inspect.Parameter.empty)],
    "first_value": [("keys", inspect.Parameter.empty), ("squeeze_single_values", True), ("strict", True)],
    "ConstantPadder": [("pad_value", 0)],
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_nvidia_pytriton(name):
    parameters = inspect.signature(getattr(decorators, name)).parameters.values()

    assert [(each.name, each.default) for each in parameters] == PARAMETERS[name]


@pytest.mark.parametrize("values", [[1, 1], [1, 2]])
def test_a_plain_wrapper_of_a_method_passes_the_object_through_decorators_of_arrays(values):
    class Network:
        factor = 3

        @batch
        @own_wraps
        @group_by_values("k")
        @own_wraps
        @first_value("k")
        def infer(self, x, k):
            return {"y": x * k * self.factor}

    requests = [{"x": ONE, "k": np.full_like(ONE, value)} for value in values]
    assert [each["y"].tolist() for each in Network().infer(requests)] == [
        (ONE * value * 3).tolist() for value in values
    ]
