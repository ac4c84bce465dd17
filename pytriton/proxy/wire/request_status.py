"""The statuses with which inference callables refuse requests, and how errors of Triton carry them.

Triton has no code for some of them, its HTTP front end has no status for others, and streams carry only text. So the
text of the error begins with the status, in words, from which ``backend/guard/refusals.cc`` corrects the status of
responses over HTTP.
"""

from __future__ import annotations

from typing import NamedTuple

from pytriton.proxy.wire.error_code import ErrorCode


class RequestStatus(NamedTuple):
    """The status of a refused request.

    Attributes:
        name: The name in ``PyTritonInvalidRequestError``.
        http: The HTTP status.
        code: The nearest of Triton's codes.
        words: The beginning of the error's text.
    """

    name: str
    http: int
    code: ErrorCode
    words: str


_INVALID = RequestStatus("invalid_argument", 400, ErrorCode.INVALID_ARG, "invalid argument")
_NOT_FOUND = RequestStatus("not_found", 404, ErrorCode.NOT_FOUND, "not found")
_CONFLICT = RequestStatus("conflict", 409, ErrorCode.ALREADY_EXISTS, "conflict")
_TOO_MANY = RequestStatus("too_many_requests", 429, ErrorCode.UNAVAILABLE, "too many requests")
_UNAVAILABLE = RequestStatus("unavailable", 503, ErrorCode.UNAVAILABLE, "unavailable")

STATUSES = {each.name: each for each in (_INVALID, _NOT_FOUND, _CONFLICT, _TOO_MANY, _UNAVAILABLE)}
"""All statuses by name."""

# A server may be unavailable for many reasons, after some of which the request may have been executed.
_BY_CODE: dict[int, RequestStatus] = {each.code: each for each in (_INVALID, _NOT_FOUND, _CONFLICT)}
# Without the guard, Triton's HTTP port has the same status for both.
_AS_INVALID = (ErrorCode.INVALID_ARG, ErrorCode.ALREADY_EXISTS)


def with_status(status: RequestStatus, message: str) -> str:
    """Returns the text of an error with a status.

    Examples:
        >>> with_status(STATUSES["conflict"], "the name is taken")
        'conflict: the name is taken'
    """
    return f"{status.words}: {message}"


def read_status(text: str, code: int | None) -> tuple[RequestStatus, str] | None:
    """Reads the status of an error.

    Args:
        text: The error's text.
        code: An `ErrorCode`; None if it is unknown, as in streams over gRPC.

    Returns:
        The status, and the text without it; None if the error has none.

    Examples:
        >>> status, message = read_status("too many requests: wait a second", ErrorCode.UNAVAILABLE)
        >>> status.http, message
        (429, 'wait a second')
    """
    words, separator, message = text.partition(": ")
    for status in STATUSES.values():
        if separator and words == status.words and _has_code(status, code):
            return status, message
    found = None if code is None else _BY_CODE.get(code)
    return None if found is None else (found, text)


def _has_code(status: RequestStatus, code: int | None) -> bool:
    return code is None or code == status.code or (status.code in _AS_INVALID and code in _AS_INVALID)
