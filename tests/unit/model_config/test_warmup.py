"""The data of warm-ups: files of both kinds, and what requests hold."""

from __future__ import annotations

import re
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.common import ModelWarmup, WarmupInput
from pytriton.model_config.datatypes import DATATYPES
from pytriton.model_config.warmup import read_samples, warmup_inputs

NUMBERS = [datatype for datatype in DATATYPES if datatype.name != "BYTES"]


def read(path, dtype, shape, count=8):
    return read_samples(WarmupInput(dtype, shape, input_data_file=str(path)), count, "input 'x'")


@given(st.data(), st.sampled_from(NUMBERS), st.lists(st.integers(1, 3), max_size=2), st.integers(1, 4))
def test_numbers_are_read_from_files_of_both_kinds(tmp_path_factory, data, datatype, shape, rows):
    path = tmp_path_factory.mktemp("data") / "data"
    size = datatype.itemsize
    raw = data.draw(arrays.arrays(np.uint8, (rows, *shape, size), elements=st.integers(0, 1)))
    array = raw.view(datatype.numpy_dtype)[..., 0] if shape else raw.view(datatype.numpy_dtype).reshape(rows)
    for write in (lambda: path.write_bytes(array.tobytes()), lambda: np.save(path.open("wb"), array)):
        write()
        samples = read(path, datatype.numpy_dtype, shape)
        assert samples.dtype == datatype.numpy_dtype
        assert samples.shape == array.shape
        assert samples.tobytes() == array.tobytes()


@given(st.lists(st.binary(max_size=6).filter(lambda text: not text.endswith(b"\0")), min_size=1, max_size=6))
def test_elements_are_read_from_files_of_both_kinds(tmp_path_factory, elements):
    path = tmp_path_factory.mktemp("data") / "data"
    path.write_bytes(b"".join(struct.pack("<I", len(each)) + each for each in elements))
    assert read(path, bytes, (1,)).ravel().tolist() == elements
    assert read(path, bytes, (len(elements),)).tolist() == [elements]
    with path.open("wb") as file:
        np.save(file, np.array(elements)[:, None])
    assert read(path, bytes, (1,)).ravel().tolist() == elements


def test_text_is_encoded(tmp_path):
    np.save(tmp_path / "a.npy", np.array(["grüße", "b"]))

    assert read(tmp_path / "a.npy", bytes, (2,)).tolist() == [["grüße".encode(), b"b"]]


def test_one_sample_or_several_along_a_first_dimension(tmp_path):
    np.save(tmp_path / "one.npy", np.ones((2, 3), np.float32))
    np.save(tmp_path / "two.npy", np.ones((2, 2, 3), np.float64))

    assert read(tmp_path / "one.npy", np.float32, (2, 3)).shape == (1, 2, 3)
    assert read(tmp_path / "two.npy", np.float32, (2, 3)).shape == (2, 2, 3)
    assert read(tmp_path / "two.npy", np.float32, (2, 3), count=1).shape == (1, 2, 3)


@pytest.mark.parametrize(
    ("array", "dtype", "message"),
    [
        (np.zeros((3, 2, 3), np.float32), np.float32, "holds an array of shape (3, 2, 3); save one of shape (2,)"),
        (np.zeros((0, 2), np.float32), np.float32, "holds an array of shape (0, 2); save one of shape (2,)"),
        (np.zeros(2, np.float32), np.int32, "holds float32; save INT32."),
        (np.zeros(2, np.float32), bytes, "holds float32; save BYTES."),
        (np.array([1, 300]), np.int8, "holds int64; save INT8."),
        (np.array([1, 1e9]), np.float16, "holds float64; save FP16."),
        (np.array(["a", "b"]), np.float32, "holds <U1; save FP32."),
        (np.array([b"a", None], object), bytes, "cannot be loaded by NumPy: Object arrays cannot be loaded"),
    ],
)
def test_an_array_that_does_not_match_is_refused(tmp_path, array, dtype, message):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(
        PyTritonBadParameterError, match=r"input 'x' comes from '.*a\.npy', which " + re.escape(message)
    ):
        read(tmp_path / "a.npy", dtype, (2,))


@pytest.mark.parametrize(
    ("content", "dtype", "message"),
    [
        (bytes(11), np.float32, "has 11 bytes, while FP32 of shape (3,) takes 12; write one whole sample"),
        (b"hello", bytes, "has 0 elements, while shape (3,) takes 3; write each after its length"),
        (b"\1\0\0\0a\2\0\0\0b", bytes, "has 1 elements, while shape (3,) takes 3"),
        (b"\x93NUMPY", np.uint8, "cannot be loaded by NumPy"),
    ],
)
def test_a_file_without_a_whole_sample_is_refused(tmp_path, content, dtype, message):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(PyTritonBadParameterError, match=re.escape(message)):
        read(tmp_path / "a", dtype, (3,))


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_samples_are_repeated_or_truncated(tmp_path, count):
    np.save(tmp_path / "a.npy", np.array([[1], [2], [3]], np.int8))
    data = WarmupInput(np.int8, (1,), input_data_file=str(tmp_path / "a.npy"))
    data.samples = read_samples(data, count, "x")
    warmup = ModelWarmup("w", count, {"x": data}, 1)

    assert warmup_inputs(warmup, count, batching=True)["x"].ravel().tolist() == [1, 2, 3, 1, 2, 3, 1][:count]
    assert warmup_inputs(warmup, 1, batching=False)["x"].tolist() == [1]


@pytest.mark.parametrize("datatype", NUMBERS, ids=lambda datatype: datatype.name)
def test_random_numbers_are_finite_and_differ(datatype):
    data = WarmupInput(datatype.numpy_dtype, (64,), random_data=True)
    array = warmup_inputs(ModelWarmup("w", 2, {"x": data}, 1), 2, batching=True)["x"]

    assert (array.dtype, array.shape) == (datatype.numpy_dtype, (2, 64))
    assert len(np.unique(array.astype(np.float64))) > 1
    if array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16:
        assert (array >= 0).all()
        assert (array <= 1).all()
