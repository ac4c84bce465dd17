"""Outputs that are not arrays of the declared dtype are converted if no value changes, and refused if not."""

from __future__ import annotations

import logging
import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config import ModelConfig, Tensor
from pytriton.model_config.model_spec import ModelSpec
from pytriton.proxy.tensors import conversion
from pytriton.proxy.tensors.conversion import conform
from pytriton.proxy.tensors.signature import Signature

NUMBERS = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
NUMBERS += ["float16", "float32", "float64", "bfloat16"]
FLOATS = {"float16", "float32", "float64", "bfloat16"}


def signature(dtype, shape=(-1,), *, batching=True, strict=False):
    tensor = Tensor(name="y", dtype=dtype, shape=shape)
    config = ModelConfig(batching=batching)
    return Signature(ModelSpec.create("Model", [tensor], [tensor], config=config, strict=strict))


def conformed(value, dtype, shape=(-1,), **settings):
    declared = signature(dtype, shape, **settings)
    return conform(value, declared.outputs[0], declared)


class WithArray:
    def __array__(self, dtype=None, copy=None):
        return np.float32([[1, 2]])


class WithDlpack:
    """A tensor of another library."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()

    def __len__(self):
        return len(self._array)


class OfJax(WithDlpack):
    """A tensor in memory, of a dtype that NumPy cannot import by DLPack."""

    def __dlpack__(self, **options):
        raise RuntimeError("Unsupported dtype in DLTensor.")

    def __array__(self, dtype=None, copy=None):
        return self._array


class Image:
    """Has what images of Pillow 13 have, and no ``__array__``."""

    pixels = np.uint8([[1, 2]])
    __array_interface__ = pixels.__array_interface__


class Unreadable(WithDlpack):
    def __dlpack__(self, **options):
        raise BufferError("it is sparse")


CONVERTED = {
    "a list of floats": ([[1.5, 2]], np.float32, [[1.5, 2]]),
    "floats of Python that are rounded": ([[0.1]], np.float32, [[np.float32(0.1)]]),
    "a tuple": (((1, 2),), np.int32, [[1, 2]]),
    "integers as floats": ([[1, 2]], np.float64, [[1, 2]]),
    "booleans": ([[True, False]], np.bool_, [[True, False]]),
    "booleans as numbers": ([[True, False]], np.int8, [[1, 0]]),
    "whole floats as integers": ([[1.0, -2.0]], np.int64, [[1, -2]]),
    "zero and one as booleans": (np.array([[0, 1]]), np.bool_, [[False, True]]),
    "strings": ([["a", "ż"]], bytes, [["a", "ż"]]),
    "bytes": ([[b"a\0", b""]], bytes, [[b"a\0", b""]]),
    "a list of bytearrays": ([[bytearray(b"a\0")], [bytearray(b"bc")]], bytes, [[b"a\0"], [b"bc"]]),
    "a list of views of bytes": ([[memoryview(b"ab"), b"c"]], bytes, [[b"ab", b"c"]]),
    "a view of numbers": (memoryview(np.float32([[1, 2]])), np.float32, [[1, 2]]),
    "integers in range": (np.array([[1, 2**31 - 1]]), np.int32, [[1, 2**31 - 1]]),
    "another byte order": (np.array([[1, 2]], ">f4"), np.float32, [[1, 2]]),
    "a wider float": (np.float32([[0.1]]), np.float64, [[np.float32(0.1)]]),
    "a narrower float of the same value": (np.array([[0.5]]), np.float16, [[0.5]]),
    "NaN and infinity": (np.array([[np.inf, -np.inf]]), np.float32, [[np.inf, -np.inf]]),
    "scalars of NumPy in a list": ([[np.int64(1), np.float32(2)]], np.float32, [[1, 2]]),
    "arrays in a list": ([np.float32([1, 2])], np.float32, [[1, 2]]),
    "what has __array_interface__": (Image(), np.uint8, [[1, 2]]),
    "what has __array__": (WithArray(), np.float32, [[1, 2]]),
    "what has __dlpack__": (WithDlpack(np.int64([[3]])), np.int32, [[3]]),
    "bfloat16 of JAX": (OfJax(np.array([[1.5]], ml_dtypes.bfloat16)), ml_dtypes.bfloat16, [[1.5]]),
    "bfloat16 of JAX as float32": (OfJax(np.array([[1.5]], ml_dtypes.bfloat16)), np.float32, [[1.5]]),
    "float8 of JAX": (OfJax(np.array([[1.5, -2]], ml_dtypes.float8_e4m3fn)), np.float32, [[1.5, -2]]),
    "float8 of NumPy": (np.array([[0.5]], ml_dtypes.float8_e5m2), ml_dtypes.bfloat16, [[0.5]]),
    "no rows": ([], np.float32, None),
}


@pytest.mark.parametrize("kind", CONVERTED)
def test_values_are_converted(kind, caplog):
    value, dtype, expected = CONVERTED[kind]
    if expected is None:
        with pytest.raises(PyTritonValidationError, match="has shape"):
            conformed(value, dtype)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        array = conformed(value, dtype)
    assert array.dtype == (object if dtype is bytes else dtype)
    assert array.tolist() == expected
    assert not caplog.records


SINGLE = {
    "a float": (1.5, np.float32, (), [1.5]),
    "an integer for a float": (1, np.float32, (1,), [1]),
    "a boolean": (True, np.bool_, (1,), [True]),
    "a string": ("a", bytes, (1,), ["a"]),
    "bytes": (b"a", bytes, (), [b"a"]),
    "a bytearray": (bytearray(b"ab"), bytes, (1,), [b"ab"]),
    "a view of bytes": (memoryview(b"ab"), bytes, (1,), [b"ab"]),
    "a scalar of NumPy": (np.float32(2), np.float32, (1,), [2]),
    "a scalar of NumPy of another dtype": (np.int64(2), np.uint8, (1,), [2]),
    "a string of NumPy": (np.str_("a"), bytes, (1,), ["a"]),
}


@pytest.mark.parametrize("kind", SINGLE)
def test_single_values_are_converted(kind):
    value, dtype, shape, expected = SINGLE[kind]
    assert conformed(value, dtype, shape, batching=False).tolist() == expected


REFUSED = {
    "an integer out of range": (
        [[1, 2**31]],
        np.int32,
        "output 'y' has dtype int64 and the value 2147483648, which int32 cannot represent, but int32 (batch, -1) was "
        "declared: declare int64, or convert the output with np.asarray(value, 'int32')",
    ),
    "a negative number": ([[-1]], np.uint8, "the value -1, which uint8 cannot represent"),
    "a fraction": (
        [[1.5]],
        np.int32,
        "the value 1.5, which int32 cannot represent, but int32 (batch, -1) was declared: declare float64, or convert "
        "the output with np.asarray(value, 'int32')",
    ),
    "a tensor in memory that cannot be read": (
        Unreadable(np.float32([[1]])),
        np.float32,
        "is an Unreadable that NumPy cannot convert (it is sparse), but float32 (batch, -1) was declared: return an "
        "array",
    ),
    "infinity as an integer": ([[-np.inf]], np.int64, "the value -inf, which int64 cannot represent"),
    "NaN as an integer": ([[np.nan]], np.int32, "the value nan, which int32 cannot represent"),
    "an integer that is rounded": ([[2**24 + 1]], np.float32, "the value 16777217, which float32 cannot represent"),
    "the largest integer": ([[2**64 - 1]], np.float64, "the value 18446744073709551615, which"),
    "a float that is too large": ([[1.0, 1e300]], np.float32, "the value 1e+300, which float32 cannot represent"),
    "two as a boolean": ([[2]], np.bool_, "the value 2, which bool cannot represent"),
    "text for numbers": (
        [["1"]],
        np.float32,
        "has dtype <U1, but float32 (batch, -1) was declared: return an array of the declared dtype, or declare bytes",
    ),
    "numbers for text": (
        np.array([[1]]),
        bytes,
        "has dtype int64, but bytes (batch, -1) was declared: return an array of the declared dtype, or declare int64",
    ),
    "complex numbers": (
        [[1j]],
        np.float32,
        "has dtype complex128, but float32 (batch, -1) was declared: return an array of the declared dtype, such as",
    ),
    "dates": (np.array([["2026-01-01"]], "M8[D]"), np.int64, "has dtype datetime64[D], but"),
    "objects": (
        np.array([[1.0]], object),
        np.float32,
        "has dtype object, but float32 (batch, -1) was declared: return an array of the declared dtype, as from "
        ".astype('float32')",
    ),
    "lists of several lengths": (
        [[1], [1, 2]],
        np.float32,
        "inhomogeneous part.), but float32 (batch, -1) was declared: give lists of one length",
    ),
    "None": (None, np.float32, "output 'y' is None, but float32 (batch, -1) was declared: return an array"),
    "a set": (
        {1},
        np.float32,
        "output 'y' is a set, but float32 (batch, -1) was declared: return an array, or lists of n",
    ),
    "a set of text": (
        {"a"},
        bytes,
        "output 'y' is a set, but bytes (batch, -1) was declared: return an array, or lists of t",
    ),
    "bytes for numbers": (
        bytearray(b"ab"),
        np.uint8,
        "is a bytearray, but uint8 (batch, -1) was declared: return an arr",
    ),
    "a number": (1.5, np.float32, "output 'y' has shape (), but float32 (batch, -1) was declared"),
    "a string": ("a", bytes, "has shape (), but bytes (batch, -1) was declared"),
    "a dictionary": (
        {"a": 1},
        bytes,
        "is a dict, but bytes (batch, -1) was declared: return one dictionary with an array for each output",
    ),
    "one dimension": (
        np.float32([1, 2]),
        np.float32,
        "has shape (2,), but float32 (batch, -1) was declared: return that many dimensions, as array.resh",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_values_that_would_change_are_refused(kind):
    value, dtype, message = REFUSED[kind]
    with pytest.raises(PyTritonValidationError) as caught:
        conformed(value, dtype, strict=isinstance(value, np.ndarray))
    assert message in caught.value.message


@pytest.mark.parametrize(("value", "strict"), [([1.0, 2.0], False), (np.float32([1, 2]), True)])
def test_a_list_or_a_vector_of_a_strict_model_is_not_treated_as_a_column(value, strict):
    with pytest.raises(PyTritonValidationError) as caught:
        conformed(value, np.float32, (1,), strict=strict)
    assert caught.value.message == (
        "output 'y' has shape (2,), but float32 (batch, 1) was declared: return array.reshape(-1, 1), or declare "
        "shape=()"
    )


ACROSS_KINDS = {
    "floats": (
        np.float32([[0.1, 2]]),
        bytes,
        [["0.10000000149011612", "2.0"]],
        "has dtype float32, which is converted to text",
    ),
    "booleans": (np.array([[True]]), bytes, [["True"]], "has dtype bool, which is converted to text"),
    "text": (np.array([["1.5"]]), np.float64, [[1.5]], "has dtype <U3, which is converted to float64"),
    "bytes": (np.array([[b"-7"]]), np.int8, [[-7]], "has dtype |S2, which is converted to int8"),
}


@pytest.mark.parametrize("kind", ACROSS_KINDS)
def test_arrays_of_numbers_become_text_and_text_becomes_numbers_with_a_warning(kind, caplog):
    array, dtype, expected, warning = ACROSS_KINDS[kind]
    assert conformed(array, dtype).tolist() == expected
    assert warning in caplog.text
    with pytest.raises(PyTritonValidationError, match="was declared"):
        conformed(array, dtype, strict=True)


@pytest.mark.parametrize(("array", "dtype"), [(np.array([["a"]]), np.float32), (np.array([[1.5]], object), np.float32)])
def test_objects_and_text_other_than_numbers_are_refused(array, dtype):
    with pytest.raises(PyTritonValidationError, match="was declared"):
        conformed(array, dtype)


@pytest.mark.parametrize("shape", [(2,), (2, 3, 4)])
def test_an_array_keeps_dimensions_that_differ_from_the_declared_ones(shape, caplog):
    array = np.zeros(shape, np.float32)
    assert conformed(array, np.float32, (1,)) is array
    assert f"output 'y' has shape {shape}, but float32 (batch, 1) was declared: return" in caplog.text
    assert (
        "It is sent with the shape that it has. Logged once; bind(..., strict=True) makes it an error." in caplog.text
    )


def test_masked_elements_are_sent_with_a_warning_or_refused(caplog):
    array = np.ma.masked_array(np.float32([[1, 2]]), [[False, True]])
    assert conformed(np.ma.masked_array(array.data), np.float32, strict=True).tolist() == [[1, 2]]
    assert not caplog.records
    assert type(conformed(array, np.float32)) is np.ndarray
    assert conformed(array, np.float32).tolist() == conformed(array, np.float64).tolist() == [[1, 2]]
    assert "has masked elements, whose hidden values are sent: replace them, as array.filled(0) does" in caplog.text
    with pytest.raises(PyTritonValidationError) as caught:
        conformed(array, np.float32, strict=True)
    assert caught.value.message == (
        "output 'y' has masked elements, but float32 (batch, -1) was declared: replace them, as array.filled(0) does"
    )


def test_once_a_deviation_was_logged_nothing_looks_for_others(monkeypatch):
    declared = signature(np.float32, (1,))
    conform(np.float64([[0.1]]), declared.outputs[0], declared)

    for name in ("_kept", "declared"):
        monkeypatch.delattr(conversion, name)
    again = conform(np.float64([0.1]), declared.outputs[0], declared)
    assert (again.shape, again.dtype) == ((1,), np.float32)


def test_an_array_without_dimensions_is_not_a_batch():
    with pytest.raises(PyTritonValidationError, match=r"has shape \(\), but float32 \(batch, -1\) was declared"):
        conformed(np.array(1, np.float32), np.float32)


def test_a_tensor_of_another_device_is_refused():
    class Remote(WithDlpack):
        def __dlpack__(self, **options):
            raise BufferError("it is in the memory of a GPU")

        def __dlpack_device__(self):
            return (8, 0)  # kDLMetal

    with pytest.raises(PyTritonValidationError, match=r"is a Remote that NumPy .* of a GPU\).*call \.cpu\(\)"):
        conformed(Remote(np.float32([[1]])), np.float32)


def test_arrays_are_rounded_with_one_warning_per_model(caplog):
    caplog.set_level(logging.WARNING)
    declared = signature(np.float32)
    for _ in range(3):
        array = conform(np.array([[0.1]]), declared.outputs[0], declared)
        assert (array.dtype, array.tolist()) == (np.float32, [[np.float32(0.1)]])
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "Model 'Model': output 'y' has dtype float64 and values such as 0.1, which are converted to float32"
    )


@pytest.mark.parametrize(
    ("value", "dtype", "expected"), [(np.float32([[1.75]]), np.int32, 1), (np.array([[2]]), bool, 1)]
)
def test_arrays_are_converted_as_by_nvidia_pytriton(value, dtype, expected, caplog):
    assert conformed(value, dtype).tolist() == [[expected]]
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("value", "dtype", "remedy"),
    [
        (np.array([[0.5, 0.1]]), np.float32, r"declare float64, or convert the output with \.astype\('float32'\)"),
        (np.array([[0.5]]), np.float32, "declare float64, or convert"),
        (np.array([[1]], np.int32), np.int64, "declare int32, or convert"),
        (np.array([[True]]), np.uint8, "declare bool, or convert"),
        (np.float64(1), np.float32, "declare float64, or convert"),
        (np.array([[1.5]], ml_dtypes.bfloat16), np.float32, "declare bfloat16, or convert"),
    ],
)
def test_strict_models_refuse_other_dtypes_even_if_no_value_changes_as_nvidia_pytriton_does(value, dtype, remedy):
    message = rf"has dtype {value.dtype}, but {np.dtype(dtype)} \(batch, -1\) was declared: {remedy}"
    with pytest.raises(PyTritonValidationError, match=message):
        conformed(value, dtype, strict=True)


@pytest.mark.parametrize("kind", ["a list of floats", "integers as floats", "another byte order", "a view of numbers"])
def test_strict_models_take_values_without_a_dtype_and_of_another_byte_order(kind):
    value, dtype, expected = CONVERTED[kind]
    assert conformed(value, dtype, strict=True).tolist() == expected


def test_strict_models_have_their_sizes_checked():
    assert conformed([[1, 2]], np.float32, (2,), strict=True).shape == (1, 2)
    with pytest.raises(PyTritonValidationError, match=r"has shape \(1, 3\), but float32 \(batch, 2\) was declared"):
        conformed([[1, 2, 3]], np.float32, (2,), strict=True)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_tensors_of_pytorch_are_converted(dtype):
    torch = pytest.importorskip("torch")
    value = torch.tensor([[0.5, -2]], requires_grad=True)
    for tensor in (value, value.to(torch.bfloat16), value.double(), torch.tensor([[0.5, -2]])[:, :]):
        array = conformed(tensor, dtype)
        assert (array.dtype, array.tolist()) == (dtype, [[0.5, -2]])
    with pytest.raises(
        PyTritonValidationError, match=r"declare float32, or convert the output with \.to\(torch\.int8\)"
    ):
        conformed(value, np.int8)


@st.composite
def castable(draw):
    dtypes = [ml_dtypes.bfloat16 if name == "bfloat16" else name for name in NUMBERS]
    source, target = (
        draw(st.sampled_from([each for each in NUMBERS if each != "bfloat16"])),
        draw(st.sampled_from(dtypes)),
    )
    return draw(arrays.arrays(source, st.tuples(st.just(1), st.integers(1, 3)))), np.dtype(target)


def exact(values):
    """The values as numbers of any size."""
    return [
        value if value != value else int(value) if value == np.trunc(value) and abs(value) != np.inf else value
        for value in values.ravel().tolist()
    ]


@given(castable())
def test_no_value_changes_without_a_warning(case):
    array, dtype = case
    declared = signature(dtype)
    converted = conform(array, declared.outputs[0], declared)
    if declared.has_warned:
        assume(array.dtype != dtype)
        with np.errstate(all="ignore"):
            changed = array.astype(dtype)
        integers = array.dtype.kind in "iu" and dtype.name in FLOATS
        assert integers or exact(changed.astype(object)) != exact(array.astype(object))
        return
    assert converted.dtype == dtype
    for before, after in zip(exact(array.astype(object)), exact(converted.astype(object)), strict=True):
        assert before == after or (before != before and after != after)
