"""Errors of requests to the gateway, and how clients see them."""

from __future__ import annotations

import http
import logging
import re
from collections.abc import Mapping
from typing import Any

from pytriton.client.exceptions import (
    Failure,
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientInvalidRequestError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)

LOGGER = logging.getLogger(__name__)

RETRY = {"retry-after": "1"}
"""Headers of a temporary refusal."""

_STATUS_OF_FAILURE = {
    Failure.NOT_SERVED: http.HTTPStatus.NOT_FOUND,
    Failure.BUSY: http.HTTPStatus.SERVICE_UNAVAILABLE,
    Failure.UNREACHABLE: http.HTTPStatus.SERVICE_UNAVAILABLE,
    Failure.LOST: http.HTTPStatus.BAD_GATEWAY,
    Failure.RESTRICTED: http.HTTPStatus.BAD_GATEWAY,
    Failure.MALFORMED: http.HTTPStatus.BAD_GATEWAY,
}
# The beginning of errors of `pytriton.client` that name a server, whose address the gateway's clients must not see.
_SERVER = re.compile(
    r"^(?:(The server|No server can be reached|The connection to the server) at \S+?(?=:? )"
    r"|(None of the servers) at .+(?= has '))"
)
_BROKEN = (Failure.UNREACHABLE, Failure.LOST, Failure.MALFORMED)  # the rest of such an error may name it again
_LATER = (http.HTTPStatus.TOO_MANY_REQUESTS, http.HTTPStatus.SERVICE_UNAVAILABLE)


class RequestError(Exception):
    """The gateway refused a request, or it failed.

    Args:
        status: The status of the response.
        message: The problem, and what to do about it.
        field: The part of the request that is wrong, such as ``x`` or ``[3].x``; None for the whole.
        headers: Headers of the response.
    """

    def __init__(
        self, status: int, message: str, field: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _encodable(message)
        self.field = None if field is None else _encodable(field)
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Returns the response's body."""
        error: dict[str, Any] = {"message": self.message}
        if self.field is not None:
            error["field"] = self.field
        return {"error": error}

    def body_of_protocol(self) -> dict[str, Any]:
        """Returns the response's body in the Open Inference Protocol."""
        return {"error": self.message}


def stopping() -> RequestError:
    """Returns the error of requests that take longer than the gateway waits for them when it stops."""
    return RequestError(http.HTTPStatus.SERVICE_UNAVAILABLE, "The gateway is stopping.", headers=RETRY)


def _encodable(text: str) -> str:
    """Escapes lone surrogates, as in the text of an exception of a user's function: JSON cannot have them."""
    return text.encode(errors="backslashreplace").decode()


def misfit(field: str, message: str) -> RequestError:
    """Returns the error of an input that does not fit the model."""
    return RequestError(http.HTTPStatus.UNPROCESSABLE_ENTITY, message, field)


def translated(error: PyTritonClientError) -> RequestError:
    """Converts an error of an inference request to one of an HTTP request."""
    if isinstance(error, PyTritonClientInvalidRequestError):
        return _failed(http.HTTPStatus(error.http_status), error.reason)
    status: http.HTTPStatus = http.HTTPStatus.INTERNAL_SERVER_ERROR  # raised by the model
    if isinstance(error, PyTritonClientValueError):
        status = http.HTTPStatus.UNPROCESSABLE_ENTITY
    elif isinstance(error, PyTritonClientModelUnavailableError):
        status = http.HTTPStatus.NOT_FOUND
    else:
        if isinstance(error, PyTritonClientTimeoutError):
            status = http.HTTPStatus.GATEWAY_TIMEOUT
        if isinstance(error, PyTritonClientInferenceServerError):  # it may be both
            status = _STATUS_OF_FAILURE.get(error.failure, status)
    return _failed(status, _without_address(error))


def _without_address(error: PyTritonClientError) -> str:
    text, found = _SERVER.subn(r"\1\2", error.message)
    if not (isinstance(error, PyTritonClientInferenceServerError) and error.failure in _BROKEN):
        return text
    if not found and "://" not in text:
        return text
    LOGGER.warning("%s", error.message)
    if not found:  # the port of another protocol, for example
        return "The server does not respond like Triton."
    return re.split("[:;] ", text, maxsplit=1)[0].rstrip(".") + "."


def _failed(status: http.HTTPStatus, message: str) -> RequestError:
    return RequestError(status, message, headers=RETRY if status in _LATER else None)
