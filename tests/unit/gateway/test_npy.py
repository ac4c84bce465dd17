from __future__ import annotations

import io
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.gateway import npy
from pytriton.gateway.errors import RequestError

numbers = st.one_of(
    hnp.integer_dtypes(endianness="="),
    hnp.floating_dtypes(endianness="="),
    hnp.boolean_dtypes(),
    hnp.byte_string_dtypes(),
)
arrays: st.SearchStrategy[Any] = hnp.arrays(numbers, hnp.array_shapes(min_dims=0, min_side=0, max_side=4))


def file_of(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


@given(arrays, st.sampled_from(["C", "F"]))
def test_an_array_is_read_as_numpy_wrote_it(array: Any, order: Any) -> None:
    array = np.asarray(array, order=order)
    read = npy.read(file_of(array))
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read, array)


@given(arrays, st.sampled_from(["C", "F"]))
def test_numpy_reads_what_was_written(array: Any, order: Any) -> None:
    array = np.asarray(array, order=order)
    read = np.load(io.BytesIO(npy.write(array)), allow_pickle=False)
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read, array)


@given(arrays, st.data())
def test_bytes_that_are_not_an_array_are_refused(array: Any, data: st.DataObject) -> None:
    body = bytearray(file_of(array))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        npy.read(bytes(body[: data.draw(st.integers(0, len(body)))]))
    except RequestError as error:
        assert error.status == 400


def test_objects_are_refused() -> None:
    file = io.BytesIO()
    np.save(file, np.array([{}], object), allow_pickle=True)
    with pytest.raises(RequestError, match="not supported"):
        npy.read(file.getvalue())
