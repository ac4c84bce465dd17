from __future__ import annotations

import pickle

import pytest

import pytriton.client
from pytriton.client import exceptions
from pytriton.client.core.failures import server_error
from pytriton.client.exceptions import Failure, PyTritonClientError, PyTritonClientInferenceServerError

NAMES = [
    "PyTritonClientError",
    "PyTritonClientValueError",
    "PyTritonClientInvalidUrlError",
    "PyTritonClientTimeoutError",
    "PyTritonClientInputError",
    "PyTritonClientModelNotReadyError",
    "PyTritonClientModelUnavailableError",
    "PyTritonClientClosedError",
    "PyTritonClientModelDoesntSupportBatchingError",
    "PyTritonClientInferenceServerError",
    "PyTritonClientInvalidRequestError",
    "PyTritonClientQueueFullError",
    "PyTritonClientQueueTimeoutError",
    "PyTritonClientUnreachableError",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_error_has_its_message(name):
    kind = getattr(exceptions, name)
    error = kind("what was wrong")

    assert isinstance(error, PyTritonClientError)
    assert (str(error), error.message) == ("what was wrong", "what was wrong")
    assert getattr(pytriton.client, name) is kind


def test_an_error_of_a_server_tells_how_far_the_request_got():
    assert PyTritonClientInferenceServerError("no").failure is Failure.REFUSED
    assert server_error("no", Failure.LOST).failure is Failure.LOST


def test_errors_can_be_pickled():
    error = pickle.loads(pickle.dumps(server_error("no", Failure.LOST)))

    assert (error.message, error.failure) == ("no", Failure.LOST)
