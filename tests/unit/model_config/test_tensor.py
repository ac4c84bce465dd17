from __future__ import annotations

import pickle

import numpy as np
import pytest

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config import Tensor


def test_a_tensor_keeps_its_arguments():
    tensor = Tensor(name="tensor3", shape=(-1,), dtype="float32")

    assert (tensor.name, tensor.shape, tensor.dtype, tensor.optional) == ("tensor3", (-1,), "float32", False)
    assert tensor.datatype.name == "FP32"


def test_a_name_and_optional_may_be_left_out():
    tensor = Tensor((1, 2), np.int8)

    assert tensor.name is None
    assert tensor.optional is False


@pytest.mark.parametrize("shape", [[2, -1], (np.int64(2), -1), np.array([2, -1])], ids=repr)
def test_any_sequence_of_integers_is_a_shape(shape):
    assert Tensor(shape, float).shape == (2, -1)


def test_a_scalar_has_an_empty_shape():
    assert Tensor((), float).shape == ()


def test_tensors_that_describe_the_same_are_equal():
    spellings = {Tensor((1,), dtype) for dtype in (np.float32, "float32", np.dtype("float32"))}

    assert len(spellings) == 1


@pytest.mark.parametrize(
    "other",
    [
        Tensor((2,), "float32", "a"),
        Tensor((1,), "float64", "a"),
        Tensor((1,), "float32", "b"),
        Tensor((1,), "float32", "a", optional=True),
        "a",
    ],
)
def test_tensors_that_differ_are_not_equal(other):
    assert Tensor((1,), "float32", "a") != other


def test_a_tensor_can_be_pickled():
    tensor = Tensor((1,), np.float32, "a")

    copy = pickle.loads(pickle.dumps(tensor))
    assert copy == tensor
    assert copy.datatype == tensor.datatype


def test_a_dimension_of_0_is_refused_with_the_remedy():
    with pytest.raises(PyTritonBadParameterError, match=r"Tensor 'a' has shape \(3, 0\) .*write -1"):
        Tensor((3, 0), float, "a")


@pytest.mark.parametrize("dim", [-2, 2**63])
def test_an_invalid_dimension_is_refused(dim):
    with pytest.raises(PyTritonBadParameterError, match=f"a dimension of {dim}; write a positive size, or -1"):
        Tensor((3, dim), float)


@pytest.mark.parametrize("shape", [3, "33", (1.5,), ("a",), None])
def test_a_shape_other_than_a_sequence_of_integers_is_refused(shape):
    with pytest.raises(PyTritonBadParameterError, match="is not a sequence of integers"):
        Tensor(shape, float)


def test_a_dtype_object_is_kept_as_its_class():
    assert Tensor((1,), np.dtype("float32")).dtype is np.float32
    assert Tensor((1,), np.dtype("S8")).dtype is np.bytes_


@pytest.mark.parametrize(
    ("shape", "remedy"),
    [
        (16, r"write \(16,\)\."),
        ("16", r"write \(16,\)\."),
        ((None, 3), "write -1 for each dimension that varies"),
        ((-1, "a"), "write -1 for each dimension that varies"),
        (np.float32, r"the fields are shape, dtype, name, in this order: write Tensor\(name=\.\.\., dtype="),
        (b"ab", r"write one like \(-1, 3\)"),
        ("", r"write one like \(-1, 3\)"),
    ],
)
def test_the_error_for_an_invalid_shape_shows_a_valid_one(shape, remedy):
    with pytest.raises(PyTritonBadParameterError, match=f"which is not a sequence of integers; {remedy}"):
        Tensor(shape, float, "a")


def test_the_error_for_swapped_arguments_names_their_order():
    with pytest.raises(PyTritonBadParameterError, match=r"name \(-1,\) is not .*; the fields are shape, dtype, name"):
        Tensor("a", np.float32, (-1,))


def test_text_for_optional_is_refused():
    with pytest.raises(PyTritonBadParameterError, match=r"Tensor 'a' has optional='false'; use True or False\."):
        Tensor((1,), float, "a", optional="false")


def test_the_error_for_an_unsupported_dtype_names_the_tensor():
    with pytest.raises(PyTritonBadParameterError, match=r"Tensor 'a': dtype complex64 is not one that Triton has"):
        Tensor((1,), np.complex64, "a")


@pytest.mark.parametrize("name", ["", 3, "\ud800"], ids=repr)
def test_a_name_that_is_not_text_is_refused(name):
    with pytest.raises(PyTritonBadParameterError, match="is not a non-empty string"):
        Tensor((1,), float, name)


def test_bytes_may_have_a_media_type():
    image = Tensor((1,), bytes, "a", media_type="image/*")
    assert image == Tensor((1,), str, "a", media_type="image/*")
    assert image != Tensor((1,), bytes, "a")


@pytest.mark.parametrize("media_type", ["", "image", "image/", "*/*", "Image/PNG", "image/png; q=1", 3], ids=repr)
def test_an_invalid_media_type_is_refused(media_type):
    with pytest.raises(PyTritonBadParameterError, match=r"Tensor 'a' has media type .*; write one like 'image/png'"):
        Tensor((1,), bytes, "a", media_type=media_type)


def test_only_bytes_have_a_media_type():
    with pytest.raises(PyTritonBadParameterError, match="only bytes have one"):
        Tensor((1,), np.uint8, "a", media_type="image/png")
