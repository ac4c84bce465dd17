"""Tensors on the command line."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pytriton.cli.tensors import printable, read_assignment, read_value, save
from pytriton.client.exceptions import PyTritonClientValueError

NUMBERS = st.sampled_from([np.int8, np.uint64, np.float16, np.float32, np.float64, np.bool_])
NAMES = st.text(min_size=1).filter(lambda name: "=" not in name)
JSON = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(), st.lists
)


@given(NAMES, JSON)
def test_json_is_read(name, value):
    assert read_assignment(f"{name}={json.dumps(value)}") == (name, value)


@given(NAMES, st.text())
def test_any_text_is_read_or_refused(name, text):
    try:
        read_name, value = read_assignment(f"{name}={text}")
    except PyTritonClientValueError:
        assert text.startswith("@")
    else:
        assert read_name == name
        assert value == read_value(text) or value != value


@pytest.mark.parametrize("value", ["ünï", '"ünï"', '["ünï", "日本"]', '{"ü": 1}'])
def test_text_is_utf_8_in_any_locale(value):
    in_c_locale = f"ü={value}".encode().decode("ascii", "surrogateescape")

    assert read_assignment(in_c_locale) == read_assignment(f"ü={value}")
    assert read_assignment(in_c_locale, ["ü"]) == read_assignment(f"ü={value}", ["ü"])


def test_the_name_of_a_file_stays_in_the_locale():
    with pytest.raises(PyTritonClientValueError, match=r"'\\udcc3\\udcbc\.npy' cannot be read: No such file"):
        read_assignment("x=@\udcc3\udcbc.npy")


@pytest.mark.parametrize("word", ["", "x", "=1", "="])
def test_malformed_assignments(word):
    with pytest.raises(PyTritonClientValueError, match="is not a tensor; write name=@array"):
        read_assignment(word)


@given(array=hnp.arrays(NUMBERS, hnp.array_shapes()))
def test_arrays_are_read_from_files(tmp_path_factory, array):
    path = tmp_path_factory.mktemp("arrays") / "x.npy"
    np.save(path, array)

    name, read = read_assignment(f"x=@{path}")
    assert name == "x"
    assert read.dtype == array.dtype
    assert np.array_equal(read, array, equal_nan=array.dtype.kind == "f")


def test_a_pickle_is_not_read(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object))

    with pytest.raises(PyTritonClientValueError, match="holds no array"):
        read_assignment(f"x=@{tmp_path / 'x.npy'}")


def test_an_archive_is_not_read(tmp_path):
    np.savez(tmp_path / "x.npz", a=[1])

    with pytest.raises(PyTritonClientValueError, match="holds several arrays"):
        read_assignment(f"x=@{tmp_path / 'x.npz'}")


@given(hnp.arrays(NUMBERS, hnp.array_shapes(min_dims=0)))
def test_numbers_are_printed_as_json(array):
    read = np.array(json.loads(json.dumps(printable(array), allow_nan=False)), array.dtype)

    if array.dtype.kind == "f":
        array[~np.isfinite(array)] = np.nan  # of null
    assert np.array_equal(read, array, equal_nan=array.dtype.kind == "f")


def test_bytes_are_printed_as_text():
    assert printable(np.array([["Grüße".encode(), b"\xff"]], dtype=object)) == [["Grüße", "\ufffd"]]
    assert printable(np.array([b"a"])) == ["a"]


def test_bfloat16_is_printed_as_numbers():
    assert printable(np.array([1.5], ml_dtypes.bfloat16)) == [1.5]


@given(values=st.lists(st.binary(max_size=5), min_size=1))
def test_bytes_are_saved_without_a_pickle_or_refused(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("saved") / "y.npz"
    try:
        save(path, {"y": np.array(values, dtype=object)})
    except PyTritonClientValueError as error:
        assert "end with zeros" in error.message
        assert any(value.endswith(b"\0") for value in values)
    else:
        assert np.load(path, allow_pickle=False)["y"].tolist() == values


def test_outputs_with_names_of_all_sorts_are_saved(tmp_path):
    arrays = {name: np.arange(3) for name in ("file", "args", "a/b", "y")}
    save(tmp_path / "y.npz", arrays)

    assert set(np.load(tmp_path / "y.npz").files) == set(arrays)
