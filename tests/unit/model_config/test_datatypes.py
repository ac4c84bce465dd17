from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import pytest
import tritonclient.utils
from tritonclient.grpc import model_config_pb2

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.datatypes import (
    CODE_BY_DTYPE,
    DATATYPES,
    DTYPE_BY_CODE,
    datatype_by_code,
    datatype_by_name,
    datatype_of,
)

FIXED_SIZE = [datatype for datatype in DATATYPES if datatype.name != "BYTES"]


@pytest.mark.parametrize("datatype", DATATYPES, ids=lambda datatype: datatype.name)
def test_every_datatype_is_one_of_tritons(datatype):
    # The enumeration of the C API and that of the model configuration differ in that the latter names BYTES a string.
    assert model_config_pb2.DataType.Value(datatype.config_name) == datatype.code


def test_every_datatype_of_triton_is_supported():
    assert {datatype.config_name for datatype in DATATYPES} == set(model_config_pb2.DataType.keys()) - {"TYPE_INVALID"}


@pytest.mark.parametrize("datatype", FIXED_SIZE, ids=lambda datatype: datatype.name)
def test_item_sizes_equal_those_of_numpy(datatype):
    assert datatype.numpy_dtype.itemsize == datatype.itemsize


@pytest.mark.parametrize("datatype", [each for each in FIXED_SIZE if each.name != "BF16"], ids=lambda each: each.name)
def test_names_equal_those_of_the_client(datatype):
    assert tritonclient.utils.np_to_triton_dtype(datatype.numpy) == datatype.name


@pytest.mark.parametrize("datatype", DATATYPES, ids=lambda datatype: datatype.name)
def test_a_datatype_is_found_by_its_dtype_its_code_and_its_name(datatype):
    assert datatype_of(datatype.numpy_dtype) is datatype
    assert datatype_of(datatype.numpy_dtype.type) is datatype
    assert datatype_of(datatype.name) is datatype
    assert datatype_by_code(datatype.code) is datatype
    assert datatype_by_name(datatype.name) is datatype
    assert CODE_BY_DTYPE[datatype.numpy_dtype] == datatype.code
    assert DTYPE_BY_CODE[datatype.code] == datatype.numpy_dtype


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("float32", "FP32"),
        ("<f4", "FP32"),
        (np.float32().dtype, "FP32"),
        (np.dtypes.Float32DType, "FP32"),
        (np.half, "FP16"),
        (float, "FP64"),
        (int, "INT64"),
        (np.longlong, "INT64"),
        (np.ulonglong, "UINT64"),
        (np.intc, "INT32"),
        (bool, "BOOL"),
        ("bool", "BOOL"),
        (np.bool_, "BOOL"),
        (bytes, "BYTES"),
        (str, "BYTES"),
        (object, "BYTES"),
        (np.bytes_, "BYTES"),
        (np.str_, "BYTES"),
        (np.object_, "BYTES"),
        ("bytes", "BYTES"),
        ("S5", "BYTES"),
        ("U7", "BYTES"),
        (np.dtype(">U7"), "BYTES"),
        (np.dtype("O", metadata={"vlen": str}), "BYTES"),
        ("bfloat16", "BF16"),
        (ml_dtypes.bfloat16, "BF16"),
        (np.dtype(ml_dtypes.bfloat16), "BF16"),
    ],
    ids=repr,
)
def test_a_datatype_is_found_in_every_usual_spelling(dtype, name):
    assert datatype_of(dtype).name == name


@pytest.mark.parametrize("datatype", DATATYPES, ids=lambda datatype: datatype.name)
def test_a_datatype_is_found_by_tritons_names_in_any_case(datatype):
    for name in (datatype.name, datatype.config_name):
        assert datatype_of(name) is datatype
        assert datatype_of(name.lower()) is datatype


@pytest.mark.parametrize(
    "dtype",
    [
        complex,
        np.complex64,
        np.longdouble,
        np.datetime64,
        "datetime64[s]",
        np.timedelta64,
        np.void,
        "V8",
        "i4,f4",
        np.integer,
        np.floating,
        np.generic,
        np.dtype,
        dict,
        ml_dtypes.float8_e4m3fn,
        None,
        "float31",
        "",
        12,
        ["float32"],
    ],
    ids=repr,
)
def test_an_unsupported_dtype_is_named_along_with_supported_ones(dtype):
    with pytest.raises(PyTritonBadParameterError, match=r"is not one that Triton has; use one of bool, uint8, .*bytes"):
        datatype_of(dtype)


def test_the_message_lists_all_names():
    with pytest.raises(PyTritonBadParameterError, match=r"^dtype fp33 is not") as caught:
        datatype_of("fp33")
    assert all(datatype.name in caught.value.message for datatype in DATATYPES)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("torch.float32", "float32"), ("np.int64", "int64"), ("tf.bfloat16", "bfloat16"), ("triton.FP16", "FP16")],
)
def test_the_error_for_another_librarys_dtype_suggests_numpys_name(dtype, name):
    with pytest.raises(PyTritonBadParameterError, match=f"^dtype {dtype} is not one of NumPy's; use '{name}'.$"):
        datatype_of(dtype)


def test_the_error_for_a_pytorch_dtype_suggests_numpys_name():
    torch = pytest.importorskip("torch")
    with pytest.raises(
        PyTritonBadParameterError, match=r"^dtype torch\.float32 is not one of NumPy.s; use 'float32'\.$"
    ):
        datatype_of(torch.float32)


def test_the_message_names_the_dtype():
    with pytest.raises(PyTritonBadParameterError, match=r"^dtype complex64 is not"):
        datatype_of(np.complex64)


def test_a_dtype_in_the_byte_order_of_another_machine_is_refused_with_the_native_one():
    with pytest.raises(PyTritonBadParameterError, match=r"'>f4'.*use 'float32'"):
        datatype_of(np.dtype(">f4"))


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="NumPy 1 has none")
def test_variable_width_strings_of_numpy_2_are_bytes():
    assert CODE_BY_DTYPE[np.dtypes.StringDType()] == 13


def test_codes_of_strings_of_any_length_are_found_and_not_cached():
    kept = len(CODE_BY_DTYPE)
    assert {CODE_BY_DTYPE[np.dtype(f"S{length}")] for length in range(1, 50)} == {13}
    assert len(CODE_BY_DTYPE) == kept


def test_the_code_of_an_unsupported_dtype_is_an_error():
    with pytest.raises(PyTritonBadParameterError, match="complex64"):
        CODE_BY_DTYPE[np.dtype(np.complex64)]


@pytest.mark.parametrize("code", [0, 15, -1])
def test_an_unknown_code_is_an_error(code):
    with pytest.raises(PyTritonBadParameterError, match=f"{code} is not the code"):
        datatype_by_code(code)
    with pytest.raises(PyTritonBadParameterError, match=f"{code} is not the code"):
        DTYPE_BY_CODE[code]


def test_an_unknown_name_is_an_error():
    with pytest.raises(PyTritonBadParameterError, match=r"'FP8' is not the name.*FP32"):
        datatype_by_name("FP8")


def test_the_error_for_bfloat16_without_ml_dtypes_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(PyTritonBadParameterError, match="pip install ml_dtypes"):
        datatype_by_name("BF16").numpy_dtype  # noqa: B018
