"""Errors of requests to OpenAI's API."""

from __future__ import annotations

import http
from typing import Any

from pytriton.gateway.errors import RequestError

_FIELDS_OF_STATUS: dict[int, dict[str, str]] = {
    http.HTTPStatus.UNAUTHORIZED: {"code": "invalid_api_key"},
    http.HTTPStatus.NOT_FOUND: {"code": "model_not_found"},
    http.HTTPStatus.TOO_MANY_REQUESTS: {"type": "requests", "code": "rate_limit_exceeded"},
}


def bad_request(message: str, field: str | None) -> RequestError:
    """Returns the error of a body that the API does not accept, and the field that is wrong."""
    return RequestError(http.HTTPStatus.BAD_REQUEST, message, field)


def error_body(error: RequestError) -> dict[str, Any]:
    """Returns the body of an error in OpenAI's API."""
    kind = "invalid_request_error" if error.status < http.HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
    fields = {"type": kind, "code": None} | _FIELDS_OF_STATUS.get(error.status, {})
    return {"error": {"message": error.message, "param": error.field, **fields}}
