"""Translates errors of servers and connections to the clients' exceptions."""

from __future__ import annotations

import re
from typing import Any

from pytriton.client.core.deadlines import in_seconds
from pytriton.client.exceptions import (
    Failure,
    PyTritonClientClosedError,
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientInvalidRequestError,
    PyTritonClientQueueTimeoutError,
    PyTritonClientTimeoutError,
    PyTritonClientUnreachableError,
    PyTritonClientValueError,
)
from pytriton.proxy.wire.error_code import ErrorCode
from pytriton.proxy.wire.request_status import RequestStatus, read_status

# gRPC's status is UNAVAILABLE both when a server responds so and when there is no connection; only the texts differ.
_NOT_CONNECTED = re.compile(
    r"failed to connect to all addresses|connections to all backends failing|errors resolving|DNS resolution failed"
)
_DISCONNECTED = re.compile(
    r"Stream removed|Socket closed|Connection reset|Broken pipe|GOAWAY|RST_STREAM|Transport closed|Endpoint closing"
    r"|Cancelling all calls|recvmsg|sendmsg|keepalive|Connection refused|Network is unreachable|No route to host"
    r"|ping timeout"
)
# The message of gRPC for asyncio when a stream ends while its request is being sent, whatever the server's status.
_CUT_SHORT = "Internal error from Core"
# An error of a model may have one of these codes, too, with any text.
_BROKEN_STREAM = re.compile(rf"(Received )?(RST_STREAM|GOAWAY)|Stream removed|{_CUT_SHORT}")
# The beginnings of the server's own messages; those of models are arbitrary.
_REQUEST_ID = r"(\[request id: .*?\] )?"
_NO_MODEL = re.compile(_REQUEST_ID + "Request for unknown model")
# Other requests that fail as unavailable may have been executed: the model's process may have crashed on them.
_STOPS = r"Server is stopping|the server is shutting down$"
_NOT_TAKEN = re.compile(
    _REQUEST_ID + rf"(Exceeds maximum queue size|{_STOPS}|Server not ready$|model '[^']*' has no worker)"
)
_STOPPING = re.compile(rf"responded: {_REQUEST_ID}({_STOPS.replace('$', '')})")
_RESTRICTED = re.compile(r"This \w+ is restricted, expecting header '([^']*)'")
# A proxy whose server has not started yet, or is busy.
_TEMPORARY = re.compile(r"Its response: status (408|425|429|5\d\d)\b")
_EXPIRED = re.compile(_REQUEST_ID + "Request timeout expired")
_MAX_SHOWN = 300
_CODE_OF_HTTP = {
    "400": ErrorCode.INVALID_ARG,
    "404": ErrorCode.NOT_FOUND,
    "409": ErrorCode.ALREADY_EXISTS,
    "429": ErrorCode.UNAVAILABLE,
    "500": ErrorCode.INTERNAL,
    "501": ErrorCode.UNSUPPORTED,
    "503": ErrorCode.UNAVAILABLE,
}
_CODE_OF_GRPC = {
    "INVALID_ARGUMENT": ErrorCode.INVALID_ARG,
    "NOT_FOUND": ErrorCode.NOT_FOUND,
    "ALREADY_EXISTS": ErrorCode.ALREADY_EXISTS,
    "UNAVAILABLE": ErrorCode.UNAVAILABLE,
}
NOT_DECODED = (ValueError, KeyError, TypeError, AttributeError, IndexError)
"""The exceptions that decoding raises for a response that does not come from Triton."""

_BROKEN = (Failure.UNREACHABLE, Failure.LOST, Failure.MALFORMED)


def server_error(message: str, failure: Failure) -> PyTritonClientInferenceServerError:
    """Creates the error of a request that failed at the server."""
    if failure is Failure.UNREACHABLE:
        return PyTritonClientUnreachableError(message)
    error = PyTritonClientInferenceServerError(message)
    error.failure = failure
    return error


def is_response(error: Exception) -> bool:
    """Returns whether an error is a server's response, so that its connection is still usable."""
    return isinstance(error, PyTritonClientInferenceServerError) and error.failure not in _BROKEN


def is_silence(error: object) -> bool:
    """Returns whether an error means that a server was reached, or may have been, and did not respond in time."""
    return isinstance(error, PyTritonClientTimeoutError) and not isinstance(error, PyTritonClientInferenceServerError)


def is_cut_short(error: BaseException) -> bool:
    """Returns whether a stream ended while its request was being sent: the server's status is lost."""
    return isinstance(error, PyTritonClientInferenceServerError) and _CUT_SHORT in error.message


def is_stopping(error: PyTritonClientInferenceServerError) -> bool:
    """Returns whether a server refused a request because it is stopping: nothing was executed."""
    return error.failure is Failure.BUSY and _STOPPING.search(error.message) is not None


def is_temporary(error: PyTritonClientInferenceServerError) -> bool:
    """Returns whether a response that is not Triton's may come from a proxy whose server is starting."""
    return error.failure is Failure.MALFORMED and _TEMPORARY.search(error.message) is not None


def is_closed(message: str) -> bool:
    """Returns whether a gRPC message means that the client closed the connection."""
    return "closed" in message and "hannel" in message


def closed_meanwhile() -> PyTritonClientClosedError:
    """Creates the error of a client that was closed by another thread or task."""
    return PyTritonClientClosedError("The client was closed while it waited for a response.")


def timed_out(url: str, timeout_s: float) -> PyTritonClientTimeoutError:
    """Creates the error of a server that did not respond in time."""
    return PyTritonClientTimeoutError(f"The server at {url} did not respond within {in_seconds(timeout_s)}.")


def unreachable(url: str, error: object) -> PyTritonClientInferenceServerError:
    """Creates the error of a server that could not be reached."""
    return server_error(_sentence(f"No server can be reached at {url}: {error}"), Failure.UNREACHABLE)


def lost(url: str, error: object) -> PyTritonClientInferenceServerError:
    """Creates the error of a connection that broke."""
    return server_error(
        _sentence(f"The connection to the server at {url} broke before the response was complete: {error}"),
        Failure.LOST,
    )


def malformed(url: str, error: object) -> PyTritonClientInferenceServerError:
    """Creates the error of a response that does not come from Triton."""
    return server_error(
        _sentence(
            f"The server at {url} does not respond like Triton; is it a proxy, or another port? Its response: "
            f"{_shortened(error)}"
        ),
        Failure.MALFORMED,
    )


def http_failure(url: str, status: str, message: str) -> PyTritonClientError:
    """Translates an error response over HTTP.

    Args:
        url: The server's URL.
        status: The HTTP status, such as ``404``.
        message: The server's message.
    """
    return server_failure(f"The server at {url}", message, _CODE_OF_HTTP.get(status, ErrorCode.UNKNOWN))


def unexpected_response(
    url: str, status: str, body: str, program: str = "", location: str = ""
) -> PyTritonClientInferenceServerError:
    """Creates the error of a response without the JSON body of Triton's errors.

    Args:
        url: The server's URL.
        status: The HTTP status.
        body: The body, as text.
        program: The header ``Server``, the name of the program.
        location: The header ``Location`` of a redirect.
    """
    said = f"status {status}{f' from {program!r}' if program else ''}"
    if location:
        said += f", a redirect to {location!r}, which clients do not follow"
    return malformed(url, f"{said}{f', {body}' if body.strip() else ''}")


def grpc_failure(url: str, status: str | None, message: str, timeout_s: float) -> PyTritonClientError:
    """Translates an error over gRPC, with or without a response.

    Args:
        url: The server's URL.
        status: The gRPC status, such as ``StatusCode.UNAVAILABLE``; None if tritonclient itself raised the error.
        message: The error's message.
        timeout_s: The timeout of the request.
    """
    if status is None:
        return PyTritonClientValueError(message)
    code = status.removeprefix("StatusCode.")
    if code == "DEADLINE_EXCEEDED":
        return timed_out(url, timeout_s)
    if code == "CANCELLED" and is_closed(message):
        return closed_meanwhile()
    if code == "UNAVAILABLE" and _NOT_CONNECTED.search(message):
        # The program that listens there does not speak gRPC.
        return malformed(url, message) if "HTTP/2" in message else unreachable(url, message)
    if code == "UNAVAILABLE" and _DISCONNECTED.search(message):
        return lost(url, message)
    if code in ("INTERNAL", "UNKNOWN", "CANCELLED") and _BROKEN_STREAM.match(message):
        return lost(url, message)
    if code == "CANCELLED" and message == code:  # cancellations by the client have other texts
        return lost(url, "the server cancelled the request, as when it stops")
    if code == "UNIMPLEMENTED" and not message:
        return malformed(url, "it speaks gRPC, but not Triton's")
    return server_failure(f"The server at {url}", message, _CODE_OF_GRPC.get(code, ErrorCode.UNKNOWN))


def stream_failure(url: str, message: str) -> PyTritonClientError:
    """Translates an error that the server sent in a stream, without its code."""
    return server_failure(f"The server at {url}", message, None)


def server_failure(server: str, message: str, code: int | None) -> PyTritonClientError:
    """Translates an error of the server or of a model.

    Args:
        server: How to refer to the server, at the beginning of a sentence.
        message: Its message.
        code: An `ErrorCode`; None if it is unknown.
    """
    restricted = _RESTRICTED.match(message)
    if restricted:
        return server_error(
            f"{server} restricts this endpoint to clients with its access token (header "
            f"{restricted[1]!r}); pass the token as access_token.",
            Failure.RESTRICTED,
        )
    if _EXPIRED.match(message):
        return PyTritonClientQueueTimeoutError(_sentence(f"{server} responded: {message}"))
    failure = Failure.REFUSED
    if _NO_MODEL.match(message):
        failure = Failure.NOT_SERVED
    elif _NOT_TAKEN.match(message):
        failure = Failure.BUSY
    elif (refused := read_status(message, code)) is not None:
        return _refused(server, *refused)
    return server_error(_sentence(f"{server} responded: {message}"), failure)


def _refused(server: str, status: RequestStatus, reason: str) -> PyTritonClientInvalidRequestError:
    error = PyTritonClientInvalidRequestError(_sentence(f"{server} refused the request ({status.words}): {reason}"))
    error.status, error.http_status, error.reason = status.name, status.http, reason
    if status.code is ErrorCode.UNAVAILABLE:  # it may be served later, or by another server
        error.failure = Failure.BUSY
    return error


def _sentence(text: str) -> str:
    return f"{text.rstrip('. ')}."


def _shortened(text: Any) -> str:
    shown = " ".join(str(text).split())
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…"
