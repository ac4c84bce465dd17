"""Type hints of values, and the tensors that they stand for."""

from __future__ import annotations

import sys
import typing
from typing import Annotated, Any, Literal, Optional

import jaxtyping
import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.model_config import Tensor
from pytriton.type_hints.value import value_hint

JAXTYPING = {
    "bool": jaxtyping.Bool,
    "float16": jaxtyping.Float16,
    "float32": jaxtyping.Float32,
    "float64": jaxtyping.Float64,
    **{f"int{bits}": getattr(jaxtyping, f"Int{bits}") for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": getattr(jaxtyping, f"UInt{bits}") for bits in (8, 16, 32, 64)},
}

dtypes = st.sampled_from(sorted(JAXTYPING))
sizes = st.one_of(st.just(-1), st.integers(1, 10_000))
shapes = st.lists(sizes, max_size=5).map(tuple)


def tensor(shape, dtype, **settings):
    return Tensor(shape=shape, dtype=dtype, **settings)


def written(shape):
    """The dimensions of a shape as jaxtyping has them."""
    return " ".join(f"n{place}" if size == -1 else str(size) for place, size in enumerate(shape))


@given(shapes, dtypes, st.booleans())
def test_jaxtyping_and_tensors_declare_the_same(shape, dtype, batched):
    hint = value_hint(JAXTYPING[dtype][np.ndarray, f"{'batch ' * batched}{written(shape)}"])
    assert (hint.tensor, hint.batched) == (tensor(shape, dtype), batched)


@given(shapes.filter(bool), dtypes)
def test_arrays_of_numpy_and_tensors_declare_the_same(shape, dtype):
    dimensions = tuple[tuple(int if size == -1 else Literal[size] for size in shape)]
    hint = value_hint(np.ndarray[dimensions, np.dtype[np.dtype(dtype).type]])
    assert (hint.tensor, hint.batched) == (tensor(shape, dtype), None)


@given(shapes, dtypes)
def test_an_annotated_tensor_is_used_unchanged(shape, dtype):
    declared = tensor(shape, dtype, name="x", optional=True)
    hint = value_hint(Annotated[np.ndarray, "a note", declared])
    assert (hint.tensor, hint.batched, hint.optional) == (declared, None, True)


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (str, tensor((1,), bytes)),
        (bytes, tensor((1,), bytes)),
        (int, tensor((1,), np.int64)),
        (float, tensor((1,), np.float64)),
        (bool, tensor((1,), np.bool_)),
        (np.int8, tensor((1,), np.int8)),
        (list[str], tensor((-1,), bytes)),
        (list[list[float]], tensor((-1, -1), np.float64)),
        (typing.Sequence[int], tensor((-1,), np.int64)),
        (NDArray[np.float32], tensor((-1,), np.float32)),
        (Annotated[str, "a note"], tensor((1,), bytes)),
        (Annotated[bytes, tensor((1,), bytes, media_type="image/*")], tensor((1,), bytes, media_type="image/*")),
        (Annotated[float, tensor((1,), np.float32)], tensor((1,), np.float32)),
    ],
    ids=str,
)
def test_values_of_python(hint, expected):
    assert value_hint(hint).tensor == expected


@pytest.mark.parametrize("hint", [Optional[str], str | None], ids=str)  # noqa: UP045
def test_inputs_that_may_be_none_are_optional(hint):
    found = value_hint(hint)
    assert found.optional
    assert found.tensor == tensor((1,), bytes)


@pytest.mark.parametrize(
    ("dimensions", "shape", "batched"),
    [
        ("batch", (), True),
        ("batch channels=3 h w", (3, -1, -1), True),
        ("n batch", (-1, -1), False),
        ("_ _skipped #one ?leaf n+1", (-1, -1, -1, -1, -1), False),
    ],
)
def test_dimensions_of_jaxtyping(dimensions, shape, batched):
    hint = value_hint(jaxtyping.Float32[np.ndarray, dimensions])
    assert (hint.tensor.shape, hint.batched) == (shape, batched)


def test_descriptions_of_a_value_are_no_constraints():
    described = Annotated[int, pydantic.Field(description="how many"), "seconds"]
    assert value_hint(described).tensor == value_hint(int).tensor


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        (jaxtyping.Float[np.ndarray, "n"], "stands for several dtypes.*write Float32"),
        (jaxtyping.Shaped[np.ndarray, "n"], "stands for several dtypes"),
        (jaxtyping.Complex64[np.ndarray, "n"], "of a dtype that Triton does not have"),
        (jaxtyping.Float32[np.ndarray, "Batch n"], "first dimension is called 'Batch'; call it 'batch'"),
        (jaxtyping.Float32[np.ndarray, "batch_size n"], "first dimension is called 'batch_size'"),
        (jaxtyping.Float32[np.ndarray, "..."], "any number of dimensions.*name each"),
        (jaxtyping.Float32[np.ndarray, "*rest n"], r"any number of dimensions \('\*rest'\)"),
        (jaxtyping.Float32[bytearray, "n"], r"use np.ndarray or torch.Tensor"),
        (np.ndarray, r"without dtype and dimensions; write Float32\[np.ndarray"),
        (NDArray[Any], r"any dtype.*NDArray\[np.float32\]"),
        (dict, r"dict, which does not describe a tensor; write .*jaxtyping.*NDArray.*Annotated.*list\[str\]"),
        (complex, "does not describe a tensor"),
        (Annotated[int, pydantic.Field(gt=0)], r"has the constraint Gt\(gt=0\), which would not be checked; remove it"),
        (pydantic.PositiveInt, r"has the constraint Gt\(gt=0\)"),
        (Annotated[str, pydantic.StringConstraints(max_length=3)], "has the constraint StringConstraints"),
        (Annotated[str, pydantic.AfterValidator(str.strip)], "has the constraint AfterValidator"),
        (Annotated[bytes, tensor((1,), bytes), pydantic.Field(min_length=1)], "has the constraint MinLen"),
        (list[dict], "is a list of dict, which is not a tensor"),
        (int | str, "a choice of several types"),
        (Annotated[str, tensor((1,), np.float32)], "is str, but its Tensor has the dtype FP32"),
        (Annotated[str, tensor((2,), bytes)], r"is one str, but its Tensor has the shape \(2,\)"),
    ],
    ids=str,
)
def test_unsupported_types_are_refused_with_supported_ones(hint, message):
    with pytest.raises(PyTritonBadParameterError, match=message):
        value_hint(hint)


texts = st.text()
whole = st.integers(-(2**63), 2**63 - 1)
VALUES = [
    (str, texts),
    (bytes, st.binary()),
    (int, whole),
    (float, st.floats(allow_nan=False)),
    (bool, st.booleans()),
    (list[str], st.lists(texts)),
    (list[bytes], st.lists(st.binary())),
    (list[int], st.lists(whole)),
    (list[bool], st.lists(st.booleans())),
]


@given(st.data())
@pytest.mark.parametrize(("hint", "values"), VALUES, ids=lambda each: str(each)[:20])
def test_values_become_arrays_and_back(hint, values, data):
    value = data.draw(values)
    found = value_hint(hint)
    array = found.encode(value)
    assert array.dtype == found.tensor.datatype.numpy_dtype
    assert array.ndim == len(found.tensor.shape)
    assert found.decode(array) == value


def test_an_empty_list_of_lists_keeps_its_dimensions():
    assert value_hint(list[list[int]]).encode([]).shape == (0, 0)


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (int, 1.5, "is 1.5, and not of dtype int64"),
        (int, "1", "is '1', and not of dtype int64"),
        (int, 2**70, "and not of dtype int64"),
        (bool, 2, "is 2, and not of dtype bool"),
        (np.int8, 300, "is 300, which does not fit int8"),
        (list[float], [[1.0]], "has 2 dimensions, and not 1"),
        (list[float], [[1.0], []], "lists have different lengths"),
        (float, [1.0, 2.0], "has 1 dimensions, and not 0"),
        (str, b"bytes", "is b'bytes', and not str"),
        (list[str], ["a", None], "is None, and not str"),
        (list[str], "abc", "has 0 dimensions, and not 1"),
    ],
)
def test_results_of_other_types_are_refused(hint, value, message):
    with pytest.raises(PyTritonValidationError, match=message):
        value_hint(hint).encode(value)


def test_bytes_that_are_not_text_are_refused():
    hint = value_hint(str)
    with pytest.raises(PyTritonValidationError, match="not UTF-8 text"):
        hint.decode(np.array([b"\xff"], object))


def test_jaxtyping_is_not_imported():
    package = sys.modules["pytriton.type_hints.array"]
    assert "jaxtyping" not in {getattr(each, "__name__", "") for each in vars(package).values()}
