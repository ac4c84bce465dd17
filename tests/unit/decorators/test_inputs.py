from __future__ import annotations

import numpy as np
import pytest

from pytriton.decorators import batch, fill_optionals, first_value, group_by_values, pad_batch, sample
from pytriton.exceptions import (
    PyTritonBadParameterError,
    PyTritonContextError,
    PyTritonRuntimeError,
    PyTritonValidationError,
)
from pytriton.model_config import Tensor
from pytriton.proxy.types import Request

ONE = np.ones((1, 2), np.float32)
HALF = np.array([0.5], np.float32)
SCALED = (
    Tensor(name="x", shape=(-1,), dtype=np.float32),
    Tensor(name="scale", shape=(1,), dtype=np.float32, optional=True),
)


def column(*values, dtype=None):
    return np.array(values, dtype).reshape(-1, 1)


def filled(requests, **defaults):
    return fill_optionals(**defaults)(lambda requests: requests)(requests)


def test_a_default_is_repeated_for_each_row_of_a_request_that_lacks_the_input():
    one, other = filled([{"x": np.ones((3, 2))}, {"x": ONE, "scale": column(7)}], scale=HALF)

    assert one["scale"].tolist() == [[0.5]] * 3
    assert one["scale"].dtype == np.float32
    assert other["scale"].tolist() == [[7]]


def test_a_default_of_text_arrives_like_text_of_clients():
    defaults = {"a": ["tschüss", b"b\0"], "b": np.array(["u"]), "c": np.array([b"s"]), "d": "scalar"}

    (request,) = filled([{"x": np.ones((2, 2))}], **defaults)

    assert all(request[name].dtype == object for name in defaults)
    assert request["a"].tolist() == [["tschüss".encode(), b"b\0"]] * 2
    assert request["b"].tolist() == [[b"u"]] * 2
    assert request["c"].tolist() == [[b"s"]] * 2
    assert request["d"].tolist() == [b"scalar"] * 2


def test_filling_changes_neither_the_request_nor_the_default():
    request = Request({"x": ONE}, parameters={"p": 1}, requested_output_names=["y"], request_id="r")
    default = HALF.copy()

    (changed,) = filled([request], scale=default)
    changed["scale"][:] = 9

    assert list(request) == ["x"]
    assert default == HALF
    assert (changed.parameters, changed.requested_output_names, changed.request_id) == ({"p": 1}, ["y"], "r")


def test_requests_that_lack_nothing_are_passed_on():
    request = Request({"x": ONE, "scale": HALF[None]})

    assert filled([request], scale=HALF)[0] is request


def test_without_batching_a_default_has_no_batch_dimension(model):
    model(SCALED, batching=False)
    seen = []

    @fill_optionals(scale=HALF)
    @sample
    def infer(x, scale):
        seen.append(scale)
        return [x]

    infer([{"x": ONE[0]}])
    seen[0][:] = 9
    infer([{"x": ONE[0]}])

    assert seen[1].tolist() == [0.5]


BAD_DEFAULTS = {
    "unknown input": (
        {"scales": HALF},
        "Model 'M': fill_optionals has a default for 'scales', but its inputs are 'x', 'scale'",
    ),
    "other dtype": ({"scale": [0.5]}, r"for 'scale' of dtype float64, but the input is FP32; .*dtype='float32'"),
    "text": ({"scale": "0.5"}, "for 'scale' of dtype object, but the input is FP32"),
    "other dimensions": ({"scale": HALF[0]}, r"for 'scale' of shape \(\), but the input has shape \(1,\)"),
    "batch dimension": ({"scale": HALF[None]}, r"of shape \(1, 1\), .* without the batch dimension"),
    "other size": ({"scale": np.ones(2, np.float32)}, r"of shape \(2,\), but the input has shape \(1,\)"),
}


@pytest.mark.parametrize("case", BAD_DEFAULTS)
def test_a_default_that_does_not_match_the_model_is_refused(model, case):
    model(SCALED)
    defaults, message = BAD_DEFAULTS[case]
    with pytest.raises(PyTritonBadParameterError, match=message):
        filled([{"x": ONE}], **defaults)


@pytest.mark.parametrize(("value", "shown"), [(None, "holds None"), ([1, [2, 3]], "NumPy cannot convert to an array")])
def test_a_default_that_is_not_an_array_is_refused_at_once(value, shown):
    with pytest.raises(PyTritonBadParameterError, match=f"the default of 'scale' .*{shown}"):
        fill_optionals(scale=value)


def test_a_function_with_defaults_may_be_bound_as_several_models(model):
    infer = fill_optionals(scale=HALF)(lambda requests: requests)
    model(SCALED)
    infer([{"x": ONE}])
    model()

    with pytest.raises(PyTritonBadParameterError, match="its inputs are 'x'"):
        infer([{"x": ONE}])


def first(array, **options):
    return first_value("k", **options)(lambda k: k)(k=array)


def test_first_value_is_a_scalar_if_a_row_has_one_element():
    value = first(column(2, 2, dtype=np.float32))

    assert value == 2
    assert type(value) is np.float32
    assert first(column(b"a", b"a", dtype=object)) == b"a"


def test_first_value_is_an_array_for_several_elements_or_on_request():
    assert first(np.array([[1, 2], [1, 2]])).tolist() == [1, 2]
    assert first(column(2, 2), squeeze_single_values=False).tolist() == [2]


def test_first_value_accepts_scalars_of_a_model_without_batching():
    assert first(np.float32(3)) == 3
    assert first(np.array(3)) == 3


def test_first_value_refuses_rows_that_differ_if_strict():
    with pytest.raises(
        PyTritonRuntimeError, match=r"first_value\('k'\): the rows of this input differ; put @group_by_v"
    ):
        first(column(1, 2))
    assert first(column(1, 2), strict=False) == 1


@pytest.mark.parametrize("row", [np.nan, -0.0, [np.nan, 1]])
def test_rows_of_a_group_are_the_same_to_first_value(row):
    seen = []

    @batch
    @group_by_values("k")
    @first_value("k")
    def infer(k):
        seen.append(k)
        return [np.ones((2, 1))]

    infer([{"k": np.array([row, row]).reshape(2, -1)}])

    assert len(seen) == 1
    assert np.array_equal(np.ravel(seen[0]), np.ravel(row), equal_nan=True)


def test_an_input_without_rows_has_no_first_value():
    with pytest.raises(PyTritonRuntimeError, match="has no rows"):
        first(np.empty((0, 1)))


def test_first_value_ignores_missing_inputs():
    assert first_value("k", "absent")(lambda k: k)(k=column(1)) == 1


def test_first_value_accepts_several_inputs_under_sample():
    responses = sample(first_value("a", "b")(lambda x, a, b: [x * a + b]))([{"x": ONE, "a": column(2), "b": column(3)}])

    assert responses[0][0].tolist() == [[5, 5]]


def test_first_value_replaces_the_inputs_of_requests_of_a_function_that_takes_them():
    request = Request({"x": ONE, "k": column(2, 2)}, parameters={"p": 1})

    (changed,) = first_value("k")(lambda requests: requests)([request])

    assert changed["k"] == 2
    assert changed.parameters == {"p": 1}
    assert request["k"].shape == (2, 1)


@pytest.mark.parametrize("key", ["", 3, None, "triton_context"])
def test_first_value_refuses_unknown_inputs(key):
    with pytest.raises(PyTritonBadParameterError, match=f"first value of {key!r}"):
        first_value(key)


@pytest.mark.parametrize(("rows", "wanted"), [(1, 2), (2, 2), (3, 8), (8, 8), (9, 20), (20, 20)])
@pytest.mark.parametrize("form", [dict, list, tuple])
def test_pad_batch_fills_up_to_the_next_size_and_cuts_the_outputs(model, rows, wanted, form):
    model(preferred=[8, 2], max_batch_size=20)
    seen = []

    @batch
    @pad_batch
    def infer(x):
        seen.append(x)
        return {"y": x * 2} if form is dict else form([x * 2])

    x = np.arange(rows, dtype=np.float32).reshape(-1, 1)
    (response,) = infer([{"x": x}])

    assert len(seen[0]) == wanted
    assert (seen[0][rows:] == x[-1]).all()
    assert response["y"].tolist() == (x * 2).tolist()


def test_without_preferred_sizes_batches_are_padded_to_the_largest(model):
    model(max_batch_size=4)

    assert len(pad_batch(lambda x: {"n": np.array([len(x)] * 4)})(x=column(b"a", dtype=object))["n"]) == 1


def test_pad_batch_keeps_outputs_without_the_padded_rows(model):
    model(max_batch_size=4)

    with pytest.raises(PyTritonValidationError, match="'y' has 1 rows, but the batch has 2"):
        batch(pad_batch(lambda x: {"y": x[:1]}))([{"x": column(1, 2)}])
    assert batch(pad_batch(lambda x: {"y": x[:2]}))([{"x": column(1, 2)}])[0]["y"].tolist() == [[1], [2]]


def test_pad_batch_does_nothing_to_a_model_without_batching(model):
    model(batching=False)

    assert sample(pad_batch(lambda x: [x]))([{"x": ONE[0]}])[0]["y"].tolist() == [1, 1]


def test_pad_batch_needs_the_model():
    with pytest.raises(PyTritonContextError, match=r"@pad_batch needs the model's configuration.*Triton.bind"):
        pad_batch(lambda x: [x])(x=ONE)
