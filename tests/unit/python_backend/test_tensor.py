"""Tensors, DLPack, and Triton's datatypes."""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import pytest

from pytriton.model_config.datatypes import CODE_BY_DTYPE, DTYPE_BY_CODE
from pytriton.python_backend import triton_python_backend_utils as pb_utils
from pytriton.python_backend.datatypes import BF16, OPAQUE, allow_bf16
from pytriton.python_backend.tensor import unchecked

NUMBERS = [
    bool,
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
]


def test_a_tensor_has_name_datatype_and_shape():
    array = np.zeros((2, 3), np.float32)
    tensor = pb_utils.Tensor("y", array)
    assert (tensor.name(), tensor.shape(), tensor.triton_dtype(), tensor.is_cpu()) == ("y", [2, 3], 11, True)
    assert tensor.as_numpy() is array


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((1, np.zeros(1)), TypeError),
        (("y", [1.0]), TypeError),
        (("y", np.zeros(1, np.complex64)), pb_utils.TritonModelException),
    ],
)
def test_invalid_arguments_are_refused(arguments, error):
    with pytest.raises(error):
        pb_utils.Tensor(*arguments)


def test_an_unsupported_dtype_is_named_with_its_tensor():
    with pytest.raises(pb_utils.TritonModelException, match=r"tensor 'y': .*complex64"):
        pb_utils.Tensor("y", np.zeros(1, np.complex64))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_dlpack_shares_memory_both_ways(dtype):
    array = np.ones((2, 3), dtype)
    taken = pb_utils.Tensor.from_dlpack("b", pb_utils.Tensor("a", array).to_dlpack())
    assert taken.name() == "b"
    assert np.shares_memory(taken.as_numpy(), array)
    assert taken.as_numpy().flags.writeable
    np.testing.assert_array_equal(taken.as_numpy(), array)
    assert np.shares_memory(np.from_dlpack(pb_utils.Tensor("a", array)), array)
    assert np.shares_memory(pb_utils.Tensor.from_dlpack("b", array).as_numpy(), array)


def test_strides_are_kept():
    array = np.arange(12, dtype=np.int32).reshape(3, 4).T[::2]
    np.testing.assert_array_equal(pb_utils.Tensor.from_dlpack("b", pb_utils.Tensor("a", array)).as_numpy(), array)


def test_arrays_that_may_not_be_written_to_are_copied():
    array = np.frombuffer(b"abcd", np.uint8)
    taken = pb_utils.Tensor.from_dlpack("b", pb_utils.Tensor("a", array).to_dlpack()).as_numpy()
    assert not np.shares_memory(taken, array)
    assert taken.tobytes() == b"abcd"


def test_the_memory_of_a_capsule_outlives_its_array():
    capsule = pb_utils.Tensor("a", np.arange(1000.0)).to_dlpack()
    np.testing.assert_array_equal(pb_utils.Tensor.from_dlpack("b", capsule).as_numpy(), np.arange(1000.0))


def test_a_capsule_is_read_once():
    capsule = pb_utils.Tensor("a", np.zeros(1)).to_dlpack()
    pb_utils.Tensor.from_dlpack("b", capsule)
    with pytest.raises(pb_utils.TritonModelException, match="cannot be read"):
        pb_utils.Tensor.from_dlpack("b", capsule)


def test_an_array_without_a_dlpack_form_is_refused():
    with pytest.raises(pb_utils.TritonModelException, match="BYTES has no DLPack form"):
        pb_utils.Tensor("a", np.array([b"x"], object)).to_dlpack()
    with pytest.raises(pb_utils.TritonModelException, match="list is neither a DLPack capsule"):
        pb_utils.Tensor.from_dlpack("b", [1])


def test_pytorch_shares_memory_both_ways():
    torch = pytest.importorskip("torch")
    tensor = torch.ones(2, 3)
    taken = pb_utils.Tensor.from_dlpack("a", torch.utils.dlpack.to_dlpack(tensor))
    taken.as_numpy()[0, 0] = 7
    assert tensor[0, 0] == 7
    given = torch.utils.dlpack.from_dlpack(taken.to_dlpack())
    given[0, 1] = 8
    assert taken.as_numpy()[0, 1] == 8
    assert torch.from_dlpack(taken).data_ptr() == tensor.data_ptr()


def test_pytorch_bfloat16_is_converted_both_ways():
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([1.5, -2], dtype=torch.bfloat16)
    for source in (tensor, torch.utils.dlpack.to_dlpack(tensor)):
        taken = pb_utils.Tensor.from_dlpack("a", source)
        assert taken.triton_dtype() == 14
        assert taken.as_numpy().astype(np.float32).tolist() == [1.5, -2]
    assert torch.equal(torch.from_dlpack(taken), tensor)


def test_bf16_is_that_of_ml_dtypes():
    assert pb_utils.Tensor("a", np.zeros(1, ml_dtypes.bfloat16)).triton_dtype() == 14
    assert pb_utils.triton_to_numpy_type(14) is ml_dtypes.bfloat16


def test_without_ml_dtypes_bf16_is_passed_on_but_cannot_be_read(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    monkeypatch.delitem(DTYPE_BY_CODE, BF16, raising=False)
    monkeypatch.delitem(CODE_BY_DTYPE, OPAQUE, raising=False)
    allow_bf16()
    tensor = unchecked("a", np.zeros(2, DTYPE_BY_CODE[BF16]))
    assert (tensor.triton_dtype(), tensor.shape()) == (14, [2])
    with pytest.raises(pb_utils.TritonModelException, match="Tensor dtype is BF16 and cannot be converted to NumPy"):
        tensor.as_numpy()
    del DTYPE_BY_CODE[BF16], CODE_BY_DTYPE[OPAQUE]


def test_datatypes_are_found_by_code_by_type_and_by_name():
    for code, numpy_type, name in [
        (11, np.float32, "TYPE_FP32"),
        (1, np.bool_, "TYPE_BOOL"),
        (13, np.object_, "TYPE_STRING"),
    ]:
        assert pb_utils.triton_to_numpy_type(code) is numpy_type
        assert pb_utils.triton_to_numpy_type(name) is numpy_type
        assert pb_utils.numpy_to_triton_type(numpy_type) == code
        assert pb_utils.triton_string_to_numpy(name) is numpy_type
    assert pb_utils.numpy_to_triton_type(np.dtype("int8")) == 6


@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (pb_utils.triton_to_numpy_type, 99),
        (pb_utils.triton_to_numpy_type, "FP32"),
        (pb_utils.numpy_to_triton_type, np.complex64),
        (pb_utils.triton_string_to_numpy, "FP32"),
    ],
)
def test_unknown_datatypes_are_refused(function, argument):
    with pytest.raises(pb_utils.TritonModelException):
        function(argument)


def test_a_name_without_a_numpy_type_is_a_key_error():
    with pytest.raises(KeyError, match=r"^'FP32' is not a datatype"):
        pb_utils.triton_string_to_numpy("FP32")
