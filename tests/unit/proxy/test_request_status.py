"""Statuses of refused requests, written into the text of an error and read from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.exceptions import _STATUSES, PyTritonBadParameterError, PyTritonInvalidRequestError
from pytriton.proxy.tensors.failure import failure_of
from pytriton.proxy.wire.error_code import ErrorCode
from pytriton.proxy.wire.request_status import STATUSES, read_status, with_status


def test_every_status_of_the_exception_has_a_code():
    assert set(STATUSES) == set(_STATUSES.values())


@given(st.sampled_from([*STATUSES.values()]), st.text())
def test_a_status_is_read_as_it_was_written(status, message):
    text = with_status(status, message)
    assert read_status(text, status.code) == read_status(text, None) == (status, message)


@given(st.text(), st.sampled_from([ErrorCode.INTERNAL, ErrorCode.UNKNOWN, ErrorCode.UNSUPPORTED, ErrorCode.CANCELLED]))
def test_other_errors_have_no_status(text, code):
    assert read_status(text, code) is None


@pytest.mark.parametrize("code", [ErrorCode.INVALID_ARG, ErrorCode.NOT_FOUND, ErrorCode.ALREADY_EXISTS])
def test_a_code_alone_is_read_as_a_status(code):
    found = read_status("no", code)
    assert found is not None
    assert (found[0].code, found[1]) == (code, "no")


def test_a_refusal_has_neither_the_models_name_nor_a_traceback():
    failure = failure_of(PyTritonInvalidRequestError("no", "not_found"), "Model", 3)
    assert failure == (3, ErrorCode.NOT_FOUND, "not found: no", "", "PyTritonInvalidRequestError")


@pytest.mark.parametrize("status", ["teapot", "", None, 400, ["conflict"]])
def test_an_unknown_status_is_refused(status):
    with pytest.raises(PyTritonBadParameterError, match="use one of invalid_argument, not_found, conflict"):
        PyTritonInvalidRequestError("no", status)
