"""What all adapters share: the library, and strings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.adapters.common import decode, import_library, infer_func_of


def test_missing_library_is_named_with_its_extra():
    with pytest.raises(ImportError, match=r"onnx_model needs the package some-package: pip install 'pytriton\[onnx\]'"):
        import_library("onnx_model", "no_such_module_anywhere", package="some-package", extra="onnx")


@given(st.lists(st.text(), min_size=1), st.booleans())
def test_strings_are_decoded_from_utf_8(strings, transposed):
    array = np.empty((len(strings), 1), object)
    array[:, 0] = [string.encode(errors="surrogatepass") for string in strings]
    array = array.T if transposed else array

    decoded = decode(array)

    assert decoded.shape == array.shape
    assert decoded.ravel().tolist() == [
        string.encode(errors="surrogatepass").decode(errors="replace") for string in strings
    ]


def test_invalid_bytes_are_replaced():
    assert decode(np.array([b"\xff!"], object)).tolist() == ["\ufffd!"]


def test_empty_arrays_of_strings_are_decoded():
    assert decode(np.empty((0, 2), object)).shape == (0, 2)


def test_request_that_fails_does_not_fail_the_others():
    def root(x):
        if (x < 0).any():
            raise ValueError("negative")
        return {"y": np.sqrt(x)}

    requests = [{"x": np.array([[value]])} for value in (4.0, -1.0, 9.0)]

    first, second, third = infer_func_of(root, "Roots.")(requests)

    assert (first["y"].item(), third["y"].item()) == (2, 3)
    assert isinstance(second, ValueError)


def test_single_request_that_fails_raises():
    def fail(x):
        raise ValueError("always")

    with pytest.raises(ValueError, match="always"):
        infer_func_of(fail, "Fails.")([{"x": np.ones((1, 1))}])
