"""Checks and conversions of the user's inputs."""

from __future__ import annotations

import decimal

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pytriton.client.core.inputs import arrays_of_batch, arrays_of_sample, match
from pytriton.client.exceptions import PyTritonClientModelDoesntSupportBatchingError, PyTritonClientValueError
from pytriton.model_config.datatypes import DATATYPES
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig

NUMBERS = [datatype for datatype in DATATYPES if datatype.name not in ("BYTES", "BF16")]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, max_side=4)


def model(*specs, max_batch_size=8):
    return TritonModelConfig("M", max_batch_size=max_batch_size, batching=max_batch_size > 0, inputs=specs)


def spec(datatype="FP32", shape=(-1,), name="x", optional=False):
    return TensorSpec(name, tuple(shape), datatype, optional)


def sample(value, datatype="FP32", shape=(-1,), *, convert=False, max_batch_size=0):
    config = model(spec(datatype, shape), max_batch_size=max_batch_size)
    ((_, array),) = arrays_of_sample(config, match(config, [value], {}), convert)
    return array


def batch(value, datatype="FP32", shape=(-1,)):
    config = model(spec(datatype, shape))
    ((_, array),) = arrays_of_batch(config, match(config, [value], {}), False)
    return array


@given(st.data(), st.sampled_from(NUMBERS), SHAPES)
def test_an_array_of_the_right_dtype_is_used_without_a_copy(data, datatype, shape):
    array = data.draw(hnp.arrays(datatype.numpy, shape))

    assert sample(array, datatype.name, [-1] * len(shape)) is array


@given(st.data(), st.sampled_from(NUMBERS), hnp.array_shapes(max_dims=3, max_side=4))
def test_lists_get_the_dtype_of_the_input(data, datatype, shape):
    array = data.draw(
        hnp.arrays(datatype.numpy, shape, elements={"allow_nan": False} if datatype.numpy.kind == "f" else None)
    )

    made = sample(array.tolist(), datatype.name, [-1] * len(shape))
    assert made.dtype == datatype.numpy
    assert np.array_equal(made, array)


@given(st.data(), st.sampled_from(NUMBERS), st.sampled_from(NUMBERS))
def test_other_dtypes_are_refused_or_converted_without_loss(data, given_datatype, wanted):
    array = data.draw(hnp.arrays(given_datatype.numpy, 3))
    if given_datatype == wanted:
        return
    with pytest.raises(PyTritonClientValueError, match=rf"is {wanted.name} \(-1,\), and the value has dtype"):
        sample(array, wanted.name)
    if np.can_cast(array.dtype, wanted.numpy, "safe"):
        converted = sample(array, wanted.name, convert=True)
        assert converted.dtype == wanted.numpy
        assert np.array_equal(converted, array, equal_nan=wanted.numpy.kind == "f")
    else:
        with pytest.raises(PyTritonClientValueError, match="if that loses nothing"):
            sample(array, wanted.name, convert=True)


@given(st.integers(), st.sampled_from([each for each in NUMBERS if each.numpy.kind in "iu"]))
def test_an_integer_fits_or_is_refused(number, datatype):
    info = np.iinfo(datatype.numpy)
    if info.min <= number <= info.max:
        assert sample(number, datatype.name, (1,)) == [number]
    else:
        with pytest.raises(PyTritonClientValueError, match="does not fit"):
            sample(number, datatype.name, (1,))


@pytest.mark.parametrize("number", [1 << 64, -(1 << 63) - 1, 10**30])
def test_an_integer_of_more_than_64_bits_fits_floating_point(number):
    assert sample([number, 1], "FP64").tolist() == [float(number), 1]
    assert sample(number, "FP32", (1,)) == [np.float32(number)]


@given(st.lists(st.text(), min_size=1))
def test_strings_are_utf8(texts):
    try:
        encoded = [text.encode() for text in texts]
    except UnicodeEncodeError:
        with pytest.raises(PyTritonClientValueError, match="cannot be encoded as UTF-8"):
            sample(texts, "BYTES")
    else:
        assert sample(texts, "BYTES").tolist() == encoded
        assert sample(np.array(texts, dtype=object), "BYTES").tolist() == encoded


@given(st.lists(st.binary(), min_size=1))
def test_bytes_are_not_changed(values):
    array = np.array(values, dtype=object)

    assert sample(array, "BYTES") is array
    assert sample(values, "BYTES").tolist() == values


@pytest.mark.parametrize("of", [bytearray, memoryview])
def test_what_has_a_buffer_is_bytes(of):
    assert sample(of(b"ab"), "BYTES").tolist() == [b"ab"]
    assert sample([of(b"ab"), of(b"cd")], "BYTES").tolist() == [b"ab", b"cd"]
    assert sample([[of(b"ab")], [b"c"]], "BYTES", (-1, 1)).tolist() == [[b"ab"], [b"c"]]
    assert sample(np.array([of(b"ab"), b"c"], object), "BYTES").tolist() == [b"ab", b"c"]


def test_a_view_of_an_array_is_an_array():
    assert sample(memoryview(np.float32([1, 2]))).tolist() == [1, 2]


@given(SHAPES, st.lists(st.integers(-1, 4).filter(bool), max_size=3))
def test_a_shape_fits_or_is_refused(shape, dims):
    value = np.zeros(shape, np.float32)
    fits = len(shape) == len(dims) and all(dim in (-1, size) for dim, size in zip(dims, shape, strict=True))
    single = shape == () and all(dim in (-1, 1) for dim in dims)
    if fits or single:
        assert sample(value, shape=dims).shape == (shape if fits else (1,) * len(dims))
        assert sample(value, shape=dims, max_batch_size=8).shape[0] == 1
    else:
        with pytest.raises(PyTritonClientValueError, match=r"Input 'x' of model 'M' is FP32 .* the value has shape"):
            sample(value, shape=dims)


@given(st.integers(1, 5), SHAPES)
def test_the_first_dimension_of_a_batch_is_free(rows, shape):
    value = np.zeros((rows, *shape), np.float32)

    assert batch(value, shape=shape) is value


@pytest.mark.parametrize("value", [True, 1, 2.5, [1, 2.5], [True, False], [], [[]]], ids=repr)
def test_python_numbers_become_floats_for_floating_point_inputs(value):
    array = sample(value, shape=(-1,) * max(1, np.ndim(value)))

    assert array.dtype == np.float32


@pytest.mark.parametrize(
    ("value", "datatype", "message"),
    [
        (1.5, "INT32", r"holds 1\.5, which is not an integer"),
        ([1, 2.5], "INT32", r"holds 2\.5, which is not an integer"),
        (1, "BOOL", "holds 1, which is neither True nor False"),
        ("1", "FP32", "holds '1', which is text, not a number"),
        (b"1", "FP32", "holds b'1', which is text, not a number"),
        ("a" * 1000, "FP32", r"holds 'a{5,20}\.\.\.a{5,20}', which is text"),
        (None, "FP32", "'x' is missing, as None was given: model 'M' takes 'x'"),
        ([1, None], "FP32", "holds None, which is not a number"),
        ([1, "a"], "FP32", "holds 'a', which is text, not a number"),
        ([[1], [decimal.Decimal(2)]], "FP32", r"holds Decimal\('2'\), of type Decimal, which is not a number"),
        (-(10**30), "INT64", "holds a number that does not fit into it"),
        ([[1], [1, 2]], "FP32", "cannot be made an array: its rows have different lengths, such as 1 and 2"),
        ([[[1], [2]], [[1], [2, 3]]], "FP32", "its rows have different lengths, such as 1 and 2"),
        ([1, np.float32(2.5)], "INT32", r"holds 2\.5, which is not an integer"),
        ([[1, 2], 3], "FP32", "cannot be made an array: it holds both lists and single values"),
        ([np.float32([1]), np.float32([1, 2])], "FP32", "its rows have different lengths, such as 1 and 2"),
        (-1, "UINT8", "holds -1, which does not fit"),
        ([1, 300], "UINT8", "holds 300, which does not fit"),
        (1e39, "FP32", "too large for float32"),
        (10**39, "FP32", "too large for float32"),
        (10**400, "FP32", "holds a number that does not fit into it"),
        (100_000, "FP16", "too large for float16"),
        (1j, "FP32", "is of type complex"),
        ({"a": 1}, "FP32", "A dictionary was given by position"),
        (object, "BYTES", "is of type type"),
        (1, "BYTES", "holds 1, which is neither str nor bytes"),
        (bytearray(b"1"), "UINT8", "is of type bytearray"),
        (np.float32([1]), "BYTES", "BYTES are str or bytes"),
        ([np.float64(1)], "FP32", r"has dtype float64; if that loses nothing, use np\.asarray\(value, 'float32'\)"),
        (np.array(["a"]), "FP32", "has dtype <U1; give an array of numbers, such as of float32"),
        (np.array([1, None]), "FP32", "has dtype object; give an array of numbers"),
    ],
    ids=repr,
)
def test_values_that_are_not_inputs(value, datatype, message):
    with pytest.raises(PyTritonClientValueError, match=message) as caught:
        sample(value, datatype)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert caught.value.__cause__ is None


def test_a_list_that_contains_itself():
    value = [1]
    value.append(value)
    for datatype in ("FP32", "BYTES", "INT32"):
        with pytest.raises(PyTritonClientValueError, match="Input 'x' of model 'M' is"):
            sample(value, datatype)


class Image:
    """Has what images of Pillow 13 have, and no ``__array__``."""

    def __init__(self, pixels):
        self.pixels = pixels
        self.__array_interface__ = pixels.__array_interface__


def test_an_image_is_an_array():
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert sample(Image(pixels), "UINT8", [-1, -1]).tolist() == pixels.tolist()


def test_another_byte_order_is_converted():
    made = sample(np.array([1.5], ">f4"), "FP32")
    assert (made.dtype.isnative, made.tolist()) == (True, [1.5])


def test_bfloat16():
    values = np.array([1.5, -2], ml_dtypes.bfloat16)

    assert sample(values, "BF16") is values
    assert sample([1.5, -2], "BF16").tolist() == [1.5, -2]
    with pytest.raises(PyTritonClientValueError, match="too large for bfloat16"):
        sample(1e39, "BF16")
    with pytest.raises(PyTritonClientValueError, match="has dtype float32"):
        sample(np.float32([1]), "BF16")


@pytest.mark.parametrize("requires_grad", [False, True])
def test_tensors_of_pytorch(requires_grad):
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([1.5, -2], requires_grad=requires_grad)

    assert sample(tensor).tolist() == [1.5, -2]
    halves = sample(tensor.to(torch.bfloat16), "BF16")
    assert (halves.dtype, halves.tolist()) == (ml_dtypes.bfloat16, [1.5, -2])
    assert sample(tensor.to(torch.bfloat16), convert=True).tolist() == [1.5, -2]
    with pytest.raises(PyTritonClientValueError, match=r"has dtype bfloat16; use \.to\(torch\.float32\), or convert_"):
        sample(tensor.to(torch.bfloat16))


class Refusing:
    """A tensor on a device that NumPy cannot read."""

    def __array__(self, dtype=None, copy=None):
        raise TypeError("it is on another device.")


def test_a_tensor_that_cannot_be_read():
    with pytest.raises(
        PyTritonClientValueError, match=r"of type Refusing, cannot be made an array: it is on another device\.$"
    ):
        sample(Refusing())


def test_subclasses_of_arrays():
    assert sample(np.ma.masked_array([1, 2], dtype=np.float32)).tolist() == [1, 2]


def test_masked_elements_are_refused():
    with pytest.raises(
        PyTritonClientValueError, match="has masked elements, whose hidden values would be sent; replace"
    ):
        sample(np.ma.masked_array(np.float32([1, 2]), [False, True]))


def test_inputs_by_position_and_by_name():
    config = model(spec(name="a"), spec(name="b"), spec(name="c", optional=True))

    def names(positional, named):
        return {each.name: value for each, value in match(config, positional, named)}

    assert names([1, 2], {}) == {"a": 1, "b": 2}
    assert names([1, 2, 3], {}) == names([], {"c": 3, "b": 2, "a": 1}) == {"a": 1, "b": 2, "c": 3}
    assert list(names([], {"c": 3, "b": 2, "a": 1})) == ["a", "b", "c"]
    assert names([1, 2, None], {}) == names([], {"a": 1, "b": 2, "c": None}) == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("positional", "named", "message"),
    [
        ([], {}, "No input was given"),
        ([1], {"b": 2}, "not both"),
        ([1], {"timeout": 2}, r"There is no input 'timeout' \(did you mean the option timeout_s\?\)"),
        ([], {"a": 1, "b": 2, "parameter": {}}, r"no input 'parameter' \(did you mean the option parameters\?\)"),
        (
            [],
            {"a": 1, "b": 2, "inference_timeout_s": 3},
            "an argument of the client.*; timeout_s is that of one request",
        ),
        ([], {"a": 1, "B": 2}, r"There is no input 'B' \(did you mean 'b'\?\)"),
        ([{"a": 1, "b": 2}], {}, r"A dictionary was given by position, with the keys 'a', 'b'; write \*\* before it"),
        ([1], {}, "The input 'b' is missing"),
        ([1, None], {}, "The input 'b' is missing"),
        ([1, 2, 3, 4], {}, "4 inputs were given"),
        ([], {"a": 1}, "The input 'b' is missing"),
        ([], {"c": 1}, "The inputs 'a', 'b' are missing"),
        ([], {"a": 1, "b": 2, "d": 3}, "There is no input 'd'"),
    ],
)
def test_mismatched_inputs(positional, named, message):
    config = model(spec(name="a"), spec("BYTES", (1,), name="b"), spec(name="c", optional=True))

    with pytest.raises(PyTritonClientValueError, match=message) as caught:
        match(config, positional, named)
    assert "model 'M' takes 'a': FP32 (-1,), 'b': BYTES (1,), 'c': FP32 (-1,), optional" in caught.value.message


def test_a_model_without_inputs():
    assert match(model(), [], {}) == []
    with pytest.raises(PyTritonClientValueError, match="takes no inputs"):
        match(model(), [1], {})


def test_a_model_whose_inputs_are_all_optional_needs_none():
    config = model(spec(name="a", optional=True), spec(name="b", optional=True))
    assert match(config, [], {}) == match(config, [None], {}) == []
    assert arrays_of_sample(config, [], False) == []


def test_a_batch_without_inputs_has_no_size():
    config = model(spec(name="a", optional=True))
    with pytest.raises(PyTritonClientValueError, match=r"the size of the batch is unknown: model 'M' takes 'a'"):
        arrays_of_batch(config, match(config, [], {}), False)
    assert arrays_of_batch(model(), [], False) == []


def test_batches_of_different_sizes():
    config = model(spec(name="a"), spec(name="b"))
    with pytest.raises(PyTritonClientValueError, match="different sizes: 1 of 'a', 2 of 'b'"):
        arrays_of_batch(config, match(config, [[[1]], [[1], [2]]], {}), False)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((0, 3), np.float32), "the batch is empty"),
        ([1, 2], r"has shape \(2,\); infer_sample takes one sample\.$"),
        (1, r"has shape \(\)"),
        ([[[1]]], r"has shape \(1, 1, 1\)"),
    ],
)
def test_values_that_are_not_batches(value, message):
    with pytest.raises(PyTritonClientValueError, match=message):
        batch(value)


def test_a_batch_of_single_values():
    with pytest.raises(
        PyTritonClientValueError, match=r"has shape \(2,\); np\.reshape\(value, \(-1, 1\)\) makes it a batch of 2"
    ):
        batch(["a", "b"], "BYTES", (1,))


def test_a_batch_given_as_a_sample():
    with pytest.raises(PyTritonClientValueError, match=r"has shape \(1, 2\); infer_batch takes batches"):
        sample([[1, 2]], max_batch_size=8)


def test_a_model_without_batching():
    config = model(spec(), max_batch_size=0)
    with pytest.raises(PyTritonClientModelDoesntSupportBatchingError, match="use infer_sample"):
        arrays_of_batch(config, match(config, [[[1]]], {}), False)
