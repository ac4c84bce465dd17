from __future__ import annotations

import numpy as np
import pytest

from pytriton.constants import TRITON_CONTEXT_FIELD_NAME
from pytriton.decorators import (
    TritonContext,
    batch,
    fill_optionals,
    group_by_keys,
    group_by_values,
    pad_batch,
    sample,
    triton_context,
)
from pytriton.exceptions import PyTritonContextError, PyTritonInvalidOperationError, PyTritonValidationError
from pytriton.model_config import Tensor
from pytriton.proxy.types import Request

INPUTS = (
    Tensor(name="x", shape=(-1,), dtype=np.float32),
    Tensor(name="w", shape=(1,), dtype=np.float32, optional=True),
)


def request(number, *rows, **inputs):
    """A request whose rows, and whose parameter, tell its number."""
    x = np.array([[number, row] for row in rows], np.float32)
    return Request({"x": x, **inputs}, parameters={"number": number})


@pytest.fixture
def seen():
    return []


@pytest.fixture
def infer(seen):
    """Notes what it learns of the rows from the context, beside the rows."""

    def infer(x, triton_context, w=None):
        numbers = [parameters["number"] for parameters in triton_context.row_parameters]
        seen.append((x[:, 0].tolist(), numbers, [each["number"] for each in triton_context.parameters]))
        return [x]

    return infer


def test_the_context_knows_the_model(model):
    spec = model(max_batch_size=7, preferred=[2])

    @triton_context
    def infer(requests, **kwargs):
        return kwargs[TRITON_CONTEXT_FIELD_NAME]

    context = infer([])
    assert isinstance(context, TritonContext)
    assert context.model_config is spec
    config = context.model_config
    assert (config.model_name, config.model_version, config.max_batch_size) == ("M", 3, 7)
    assert (config.batching, config.decoupled, config.response_cache) == (True, False, False)
    assert config.batcher.preferred_batch_size == [2]
    assert config.inputs[0].name == "x"


def test_a_context_made_for_a_unit_test_knows_its_model(model):
    spec = model()
    assert TritonContext({"M": spec}).model_config is spec


def test_without_a_server_there_is_no_context():
    with pytest.raises(PyTritonContextError, match="@triton_context needs the model's configuration"):
        triton_context(lambda triton_context: None)()
    assert issubclass(PyTritonContextError, PyTritonValidationError), "as nvidia-pytriton raises"
    assert issubclass(PyTritonContextError, PyTritonInvalidOperationError)


ORDERS = {
    "below batch": lambda infer: batch(triton_context(infer)),
    "above batch": lambda infer: triton_context(batch(infer)),
    "above group_by_keys": lambda infer: triton_context(group_by_keys(batch(infer))),
    "below group_by_keys": lambda infer: group_by_keys(triton_context(batch(infer))),
    "below fill_optionals": lambda infer: fill_optionals(w=np.ones(1, np.float32))(batch(triton_context(infer))),
    "above pad_batch": lambda infer: batch(triton_context(pad_batch(infer))),
    "below pad_batch": lambda infer: batch(pad_batch(triton_context(infer))),
    "around batch": lambda infer: triton_context(batch(triton_context(infer))),
}


@pytest.mark.parametrize("order", ORDERS)
def test_parameters_of_each_row_reach_the_function_in_any_decorator_order(model, infer, seen, order):
    model(INPUTS, max_batch_size=4)

    ORDERS[order](infer)([request(1, 0), request(2, 0, 1)])

    ((rows, numbers, requests),) = seen
    assert numbers == rows
    assert requests == [1, 2]


@pytest.mark.parametrize("wrap", [lambda f: triton_context(batch(f)), lambda f: batch(triton_context(f))])
@pytest.mark.parametrize("padded", [False, True])
def test_groups_of_values_get_the_parameters_of_their_rows(model, infer, seen, wrap, padded):
    model(INPUTS, max_batch_size=4)
    grouped = group_by_values("w")(pad_batch(infer) if padded else infer)
    w = np.array([[1], [2]], np.float32)

    wrap(grouped)([request(1, 0, 1, w=w), request(2, 0, w=w[1:]), request(3, 0, w=w[:1])])

    assert [numbers for _, numbers, _ in seen] == [rows for rows, _, _ in seen]
    assert [requests for _, _, requests in seen] == [[1, 3], [1, 2]]


def test_groups_of_keys_get_the_parameters_of_their_requests(model, infer, seen):
    model(INPUTS)
    w = np.ones((1, 1), np.float32)

    triton_context(group_by_keys(batch(infer)))([request(1, 0), request(2, 0, w=w), request(3, 0)])

    assert [requests for _, _, requests in seen] == [[1, 3], [2]]


@pytest.mark.parametrize("wrap", [lambda f: triton_context(sample(f)), lambda f: sample(triton_context(f))])
def test_sample_gets_the_parameters_of_its_request(model, infer, seen, wrap):
    model(INPUTS)

    wrap(infer)([request(1, 0, 1), request(2, 0)])

    assert seen == [([1, 1], [1, 1], [1]), ([2], [2], [2])]


def test_sample_of_a_model_without_batching_has_requests_but_no_rows(model):
    model(batching=False)
    contexts = []

    @sample
    @triton_context
    def infer(x, triton_context):
        contexts.append(triton_context)
        return [x]

    infer([Request({"x": np.ones(3)}, parameters={"a": 1})])

    assert contexts[0].parameters == [{"a": 1}]
    assert contexts[0].rows == contexts[0].row_parameters == []


def test_a_function_that_takes_requests_gets_them_in_the_context_too(model):
    model()

    @triton_context
    def infer(requests, triton_context):
        assert triton_context.requests is requests
        return triton_context

    context = infer([request(1, 0, 1), {"x": np.ones((1, 2))}])
    assert context.parameters == [{"number": 1}, {}]
    assert context.rows == [2, 1]
    assert context.row_parameters == [{"number": 1}, {"number": 1}, {}]


def test_a_method_gets_the_context(model):
    model()

    class Model:
        @batch
        @triton_context
        def __call__(self, x, triton_context):
            return {"y": np.full((len(x), 1), triton_context.model_config.max_batch_size)}

    assert Model()([request(1, 0)])[0]["y"].tolist() == [[4]]


def test_a_nested_call_has_its_own_context(model):
    model()
    inner = batch(triton_context(lambda x, triton_context: [np.full((1, 1), triton_context.parameters[0]["number"])]))

    @batch
    @triton_context
    def outer(x, triton_context):
        (response,) = inner([request(2, 0)])
        return [np.hstack([response["y"], np.full((1, 1), triton_context.parameters[0]["number"])])]

    assert outer([request(1, 0)])[0]["y"].tolist() == [[2, 1]]
