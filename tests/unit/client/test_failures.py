"""Translation of libraries' errors to the clients' own."""

from __future__ import annotations

import pytest

from pytriton.client.core.failures import (
    grpc_failure,
    http_failure,
    is_response,
    stream_failure,
    unexpected_response,
)
from pytriton.client.exceptions import (
    Failure,
    PyTritonClientClosedError,
    PyTritonClientInferenceServerError,
    PyTritonClientInvalidRequestError,
    PyTritonClientQueueTimeoutError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)

URL = "http://localhost:8000"


@pytest.mark.parametrize(
    ("status", "message", "failure"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses; last error: Connection refused", Failure.UNREACHABLE),
        ("UNAVAILABLE", "errors resolving nobody:1: Domain name not found", Failure.UNREACHABLE),
        ("UNAVAILABLE", "DNS resolution failed for nobody:1", Failure.UNREACHABLE),
        ("UNAVAILABLE", "failed to connect to all addresses; Failed parsing HTTP/2", Failure.MALFORMED),
        ("UNAVAILABLE", "Socket closed", Failure.LOST),
        ("UNAVAILABLE", "recvmsg:Connection reset by peer", Failure.LOST),
        ("INTERNAL", "Received RST_STREAM with error code 2", Failure.LOST),
        ("INTERNAL", "Internal error from Core", Failure.LOST),
        ("CANCELLED", "CANCELLED", Failure.LOST),
        ("CANCELLED", "model 'x': Error: CANCELLED", Failure.REFUSED),
        ("UNAVAILABLE", "Exceeds maximum queue size", Failure.BUSY),
        ("UNAVAILABLE", "[request id: 7] Exceeds maximum queue size", Failure.BUSY),
        ("UNAVAILABLE", "Server is stopping, scheduler for model has stopped accepting", Failure.BUSY),
        ("UNAVAILABLE", "the server is shutting down", Failure.BUSY),
        ("UNAVAILABLE", "Server not ready", Failure.BUSY),
        ("INTERNAL", "model 'x': Error: the server is shutting down", Failure.REFUSED),
        ("UNAVAILABLE", "model 'x' has no worker: cannot reach the worker", Failure.BUSY),
        ("UNAVAILABLE", "model 'x': the worker has gone", Failure.REFUSED),
        ("INTERNAL", "model 'x': Error: Exceeds maximum queue size", Failure.REFUSED),
        ("UNAVAILABLE", "Request for unknown model: 'x' has no available versions", Failure.NOT_SERVED),
        ("NOT_FOUND", "Request for unknown model: 'x' is not found", Failure.NOT_SERVED),
        ("UNAVAILABLE", "This protocol is restricted, expecting header 'triton-access-token'", Failure.RESTRICTED),
        ("INVALID_ARGUMENT", "unexpected inference input 'z'", Failure.REFUSED),
        ("INTERNAL", "model 'x': ConnectionResetError: Connection reset by peer", Failure.REFUSED),
        ("UNIMPLEMENTED", "", Failure.MALFORMED),
    ],
)
def test_errors_of_grpc(status, message, failure):
    error = grpc_failure(URL, f"StatusCode.{status}", message, 1.0)

    assert isinstance(error, PyTritonClientInferenceServerError)
    assert isinstance(error, PyTritonClientTimeoutError) is (failure is Failure.UNREACHABLE)
    assert (error.failure, error.message.endswith(".")) == (failure, True)
    assert is_response(error) is (failure in (Failure.BUSY, Failure.NOT_SERVED, Failure.RESTRICTED, Failure.REFUSED))


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        ("StatusCode.DEADLINE_EXCEEDED", "Deadline Exceeded", PyTritonClientTimeoutError),
        ("StatusCode.UNAVAILABLE", "Request timeout expired", PyTritonClientQueueTimeoutError),
        ("StatusCode.CANCELLED", "Channel closed!", PyTritonClientClosedError),
        (None, 'Parameter "priority" is a reserved parameter', PyTritonClientValueError),
    ],
)
def test_errors_of_grpc_that_do_not_come_from_a_server(status, message, kind):
    assert type(grpc_failure(URL, status, message, 1.0)) is kind


@pytest.mark.parametrize(
    ("status", "message", "failure"),
    [
        ("503", "Exceeds maximum queue size", Failure.BUSY),
        ("404", "Request for unknown model: 'x' is not found", Failure.NOT_SERVED),
        ("403", "This API is restricted, expecting header 'triton-access-token'", Failure.RESTRICTED),
        ("400", "unexpected inference input 'z'", Failure.REFUSED),
    ],
)
def test_errors_over_http(status, message, failure):
    assert http_failure(URL, status, message).failure is failure


def test_http_responses_that_do_not_come_from_triton():
    error = unexpected_response(URL, "502", "<html>Bad Gateway</html>")

    assert error.failure is Failure.MALFORMED
    assert "status 502, <html>Bad Gateway</html>" in error.message


def test_a_long_page_is_shortened():
    error = unexpected_response(URL, "502", "<p>\n" * 1000)

    assert len(error.message) < 500
    assert "\n" not in error.message


def test_a_missing_token_is_reported():
    error = http_failure(URL, "403", "This API is restricted, expecting header 'a-b'")

    assert "(header 'a-b'); pass the token as access_token" in error.message


@pytest.mark.parametrize(
    ("status", "message", "http_status", "reason"),
    [
        ("INVALID_ARGUMENT", "invalid argument: no", 400, "no"),
        ("INVALID_ARGUMENT", "unexpected inference input 'z'", 400, "unexpected inference input 'z'"),
        ("NOT_FOUND", "not found: no", 404, "no"),
        ("ALREADY_EXISTS", "conflict: no", 409, "no"),
        ("ALREADY_EXISTS", "it is there", 409, "it is there"),
        ("UNAVAILABLE", "too many requests: no", 429, "no"),
        ("UNAVAILABLE", "unavailable: no", 503, "no"),
    ],
)
def test_the_status_of_a_refusal_over_grpc(status, message, http_status, reason):
    error = grpc_failure(URL, f"StatusCode.{status}", message, 1.0)

    assert isinstance(error, PyTritonClientInvalidRequestError)
    assert (error.http_status, error.reason) == (http_status, reason)


@pytest.mark.parametrize(
    ("status", "message", "http_status"),
    [
        ("400", "invalid argument: no", 400),
        ("400", "conflict: no", 409),
        ("404", "not found: no", 404),
        ("503", "too many requests: no", 429),
        ("503", "unavailable: no", 503),
    ],
)
def test_the_status_of_a_refusal_over_http(status, message, http_status):
    error = http_failure(URL, status, message)

    assert isinstance(error, PyTritonClientInvalidRequestError)
    assert (error.http_status, error.reason) == (http_status, "no")


@pytest.mark.parametrize("message", ["invalid argument: no", "conflict: no", "too many requests: no"])
def test_the_status_of_a_refusal_in_a_stream(message):
    assert isinstance(stream_failure(URL, message), PyTritonClientInvalidRequestError)


@pytest.mark.parametrize(
    ("status", "message"),
    [("INTERNAL", "not found: no"), ("UNAVAILABLE", "model 'x': the worker has gone"), ("UNKNOWN", "conflict: no")],
)
def test_errors_that_are_not_refusals(status, message):
    assert type(grpc_failure(URL, f"StatusCode.{status}", message, 1.0)) is PyTritonClientInferenceServerError
