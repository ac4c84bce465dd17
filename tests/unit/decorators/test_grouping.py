from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.decorators import ConstantPadder, batch, group_by_keys, group_by_values, sample
from pytriton.exceptions import PyTritonArrayError, PyTritonBadParameterError, PyTritonValidationError

ONE = np.ones((1, 2), np.float32)


def column(*values, dtype=None):
    return np.array(values, dtype).reshape(-1, 1)


def test_group_by_keys_makes_a_call_for_each_set_of_inputs_and_keeps_the_order():
    calls = []

    @group_by_keys
    @batch
    def infer(a, b=None):
        calls.append((len(a), b is not None))
        return {"y": a if b is None else a + b}

    responses = infer([{"a": ONE}, {"b": ONE, "a": ONE * 2}, {"a": ONE * 3}, {"a": ONE * 4, "b": ONE}])

    assert calls == [(2, False), (2, True)]
    assert [each["y"][0, 0] for each in responses] == [1, 3, 3, 5]


def test_group_by_keys_passes_on_requests_with_the_same_inputs():
    seen = []

    @group_by_keys
    def infer(requests):
        seen.append(requests)
        return requests

    requests = [{"a": ONE}, {"a": ONE}]
    infer(requests)

    assert seen == [requests]
    assert seen[0] is requests


def test_group_by_keys_stands_above_sample_and_above_a_function_that_takes_requests():
    requests = [{"a": ONE}, {"b": ONE * 2}, {"a": ONE * 3}]

    assert [each[0][0, 0] for each in group_by_keys(sample(lambda **inputs: list(inputs.values())))(requests)] == [
        1,
        2,
        3,
    ]
    assert group_by_keys(lambda requests: requests)(requests) == requests


def test_group_by_keys_keeps_exceptions_that_stand_for_responses():
    error = ValueError("no")

    @group_by_keys
    def infer(requests):
        return [error if "b" in request else request for request in requests]

    assert infer([{"a": ONE}, {"b": ONE}])[1] is error


@pytest.mark.parametrize(("returned", "shown"), [(None, "None"), ([], "a list of 0"), (3, "a value of type int")])
def test_group_by_keys_refuses_other_than_one_response_per_request(returned, shown):
    with pytest.raises(PyTritonValidationError, match=f"a call with 1 requests, which returned {shown}: return a list"):
        group_by_keys(lambda requests: returned)([{"a": ONE}, {"b": ONE}])


@st.composite
def _grouped_rows(draw):
    rows = draw(st.integers(1, 12))
    keys = {
        "number": st.sampled_from([0.0, 1.5, float("nan")]),
        "text": st.sampled_from([b"", b"a", b"a\0"]),
    }
    chosen = draw(st.lists(st.sampled_from(sorted(keys)), min_size=1, unique=True))
    values = {name: draw(st.lists(keys[name], min_size=rows, max_size=rows)) for name in chosen}
    return rows, {name: column(*each, dtype=object if name == "text" else float) for name, each in values.items()}


@given(_grouped_rows(), st.sampled_from([dict, list]))
def test_groups_by_value_are_uniform_and_joined_in_the_order_of_the_rows(drawn, form):
    rows, keys = drawn
    x = np.arange(rows).reshape(-1, 1)
    groups = []

    @group_by_values(*keys)
    def infer(x, **values):
        groups.append([tuple(map(repr, row)) for row in zip(*(each[:, 0] for each in values.values()), strict=True)])
        return {"y": x * 2} if form is dict else [x * 2]

    outputs = infer(x=x, **keys)

    assert (outputs["y"] if form is dict else outputs[0]).tolist() == (x * 2).tolist()
    assert all(len(set(group)) == 1 for group in groups)
    assert len({group[0] for group in groups}) == len(groups)


def test_group_by_values_groups_rows_across_requests_under_batch():
    seen = []

    @batch
    @group_by_values("power")
    def infer(x, power):
        seen.append((x[:, 0].tolist(), power[:, 0].tolist()))
        return {"y": x ** power[0]}

    responses = infer([{"x": column(1, 2), "power": column(1, 2)}, {"x": column(3), "power": column(1)}])

    assert seen == [([1, 3], [1, 1]), ([2], [2])]
    assert [each["y"].tolist() for each in responses] == [[[1], [4]], [[3]]]


def test_group_by_values_groups_by_whole_rows():
    sizes = []

    @group_by_values("k")
    def infer(k):
        sizes.append(len(k))
        return [k]

    keys = np.array([[1, 2], [1, 3], [1, 2]])

    assert infer(k=keys)[0].tolist() == keys.tolist()
    assert sizes == [2, 1]


def test_group_by_values_keeps_outputs_that_are_not_rows():
    @group_by_values("k")
    def infer(k, factor, name):
        assert name == "n"
        return [k * factor]

    assert infer(k=column(1, 2), factor=np.float32(3), name="n")[0].tolist() == [[3], [6]]


def test_nested_groups_restore_the_order_too():
    @group_by_values("a")
    @group_by_values("b")
    def infer(a, b):
        assert len(set(a[:, 0])) == len(set(b[:, 0])) == 1
        return [a * 10 + b]

    assert infer(a=column(1, 2, 1, 2), b=column(5, 5, 6, 5))[0].ravel().tolist() == [15, 25, 16, 25]


def test_pad_fn_gives_the_outputs_of_groups_one_shape():
    @group_by_values("n", pad_fn=ConstantPadder(-1))
    def infer(n):
        return {"y": np.ones((len(n), n[0, 0]), int)}

    assert infer(n=column(2, 1, 2))["y"].tolist() == [[1, 1], [1, -1], [1, 1]]


def test_pad_fn_may_be_a_custom_function():
    def cut(groups):
        return tuple({"y": group["y"][:, :1]} for group in groups)

    @group_by_values("n", pad_fn=cut)
    def infer(n):
        return {"y": np.ones((len(n), n[0, 0]), int)}

    assert infer(n=column(2, 1))["y"].tolist() == [[1], [1]]


BAD_GROUPS = {
    "outputs of other shapes": (
        lambda k: [np.ones((len(k), k[0, 0]))],
        r"shapes \[\(1, 1\), \(2, 2\)\].*ConstantPadder",
    ),
    "outputs with other rows": (lambda k: {"y": k[:0]}, "1 rows, whose output 'y' is an array of shape .0, 1."),
    "outputs that are not arrays": (lambda k: {"y": None}, "output 'y' is None: return an array"),
    "other outputs": (lambda k: {str(k[0, 0]): k}, "2 calls, whose outputs are '1' and '2': return the same"),
    "no outputs": (lambda k: None, "returned None: return a dictionary"),
    "an array": (lambda k: k, "returned an array of shape .*: return a dictionary"),
}

BAD_ARRAYS = {"outputs of other shapes", "outputs with other rows"}


@pytest.mark.parametrize("case", BAD_GROUPS)
def test_groups_that_cannot_be_joined_are_reported(case):
    infer, message = BAD_GROUPS[case]
    with pytest.raises(PyTritonArrayError if case in BAD_ARRAYS else PyTritonValidationError, match=message):
        group_by_values("k")(infer)(k=column(1, 2, 2))


def test_group_by_values_names_the_inputs_when_one_is_missing():
    with pytest.raises(
        PyTritonValidationError, match=r"group_by_values\('k'\): the call has no such input, but 'a', 'b'"
    ) as caught:
        group_by_values("k")(lambda **inputs: inputs)(a=ONE, b=ONE)
    assert isinstance(caught.value, KeyError), "as nvidia-pytriton raises"


@pytest.mark.parametrize("keys", [(), (3,), (len,)])
def test_group_by_values_needs_names(keys):
    with pytest.raises(PyTritonBadParameterError, match="give it the names of the inputs to group by"):
        group_by_values(*keys)


SHAPES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(1, 3)), min_size=1, max_size=5)
KINDS = {"f4": (-7, -7), "i8": (-7, -7), "U3": ("--", "--"), "S3": (b"--", b"--"), "O": (0, b"")}


@given(SHAPES, st.sampled_from(sorted(KINDS)))
def test_the_padder_makes_one_shape_and_keeps_the_values(shapes, kind):
    value, expected = KINDS[kind]
    content = b"c" if kind == "O" else 1
    arrays = [np.full(shape, content, kind) for shape in shapes]

    padded = [each["y"] for each in ConstantPadder(value)([{"y": array} for array in arrays])]

    widest = tuple(map(max, *(array.shape[1:] for array in arrays))) if len(arrays) > 1 else arrays[0].shape[1:]
    for array, result in zip(arrays, padded, strict=True):
        assert result.shape == (len(array), *widest)
        inside = np.zeros(result.shape, bool)
        inside[tuple(map(slice, array.shape))] = True
        assert (result[inside] == array.ravel()).all()
        assert all(each == expected for each in result[~inside].tolist())


def test_the_padder_pads_each_output_by_its_own_shapes():
    padded = ConstantPadder()([{"a": np.ones((1, 1)), 0: np.ones(1)}, {"a": np.ones((2, 3)), 0: np.ones(2)}])

    assert [{name: array.shape for name, array in each.items()} for each in padded] == [
        {"a": (1, 3), 0: (1,)},
        {"a": (2, 3), 0: (2,)},
    ]


@pytest.mark.parametrize(("kind", "expected"), [("S1", b""), ("U1", ""), ("O", b"")])
def test_with_a_number_text_is_padded_with_empty_strings(kind, expected):
    assert (
        ConstantPadder(0)([{"y": np.full((1, 1), b"a", kind)}, {"y": np.full((1, 2), b"a", kind)}])[0]["y"][0, 1]
        == expected
    )


def test_text_is_not_cut_to_the_width_of_the_array():
    padded = ConstantPadder("<pad>")([{"y": np.array([["a"]])}, {"y": np.array([["b", "c"]])}])

    assert padded[0]["y"].tolist() == [["a", "<pad>"]]


@pytest.mark.parametrize(
    ("texts", "value", "expected"),
    [(np.array([["é".encode()]]), "ü", "ü".encode()), (np.array([["é"]]), "ü".encode(), "ü")],
    ids=["bytes", "text"],
)
def test_the_padder_converts_its_text_to_the_kind_of_the_array(texts, value, expected):
    padded = ConstantPadder(value)([{"y": texts}, {"y": np.repeat(texts, 2, axis=1)}])

    assert padded[0]["y"].tolist() == [[texts.item(), expected]]
    assert padded[0]["y"].dtype.kind == texts.dtype.kind


def test_the_padder_refuses_a_value_that_does_not_fit():
    arrays = [{"y": np.ones((1, 1))}, {"y": np.ones((1, 2))}]
    with pytest.raises(PyTritonArrayError, match=r"'<pad>'. cannot pad the array 'y', whose dtype is float64"):
        ConstantPadder("<pad>")(arrays)


def test_the_padder_refuses_arrays_with_other_dimensions():
    with pytest.raises(PyTritonArrayError, match="'y' have 2 and 3 dimensions"):
        ConstantPadder()([{"y": np.ones((1, 1))}, {"y": np.ones((1, 1, 1))}])


def test_arrays_that_do_not_fit_are_value_errors_too():
    assert issubclass(PyTritonArrayError, ValueError), "as NumPy and nvidia-pytriton raise"
    assert issubclass(PyTritonArrayError, PyTritonValidationError)


@pytest.mark.parametrize("keys", [(2, 2, 4), (2, 2, 2), (1, 2, 3)])
@pytest.mark.parametrize("kind", [dict, list])
def test_group_by_values_repeats_a_single_row_for_all_rows_of_its_group(keys, kind):
    @batch
    @group_by_values("k")
    def mean(x, k):
        row = x.mean(0, keepdims=True)
        return {"y": row} if kind is dict else [row]

    x = np.array([1, 2, 3])
    [response] = mean([{"x": column(*x), "k": column(*keys)}])
    y = response["y"] if kind is dict else response[0]
    assert y.ravel().tolist() == [x[np.array(keys) == key].mean() for key in keys]


@pytest.mark.parametrize("keys", [(2, 2, 4), (2, 2, 2)])
def test_group_by_values_repeats_a_single_row_of_a_coroutine(keys):
    @batch
    @group_by_values("k")
    async def first(x, k):
        return {"y": x[:1]}

    [response] = asyncio.run(first([{"x": column(1, 2, 3), "k": column(*keys)}]))
    assert response["y"].ravel().tolist() == [1, 1, 1 if keys[2] == 2 else 3]


def test_group_by_values_refuses_other_numbers_of_rows():
    infer = batch(group_by_values("k")(lambda x, k: {"y": np.ones((2, 1))}))
    with pytest.raises(PyTritonArrayError, match="3 rows"):
        infer([{"x": column(1, 2, 3, 4), "k": column(1, 1, 1, 2)}])
