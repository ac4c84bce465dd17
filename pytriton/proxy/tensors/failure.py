"""Failures of requests: the message for the client, and the details for the server's log."""

from __future__ import annotations

import traceback
from types import TracebackType

from pytriton.exceptions import PyTritonValidationError
from pytriton.proxy.wire.error_code import ErrorCode
from pytriton.proxy.wire.inference import RESCHEDULE, RequestFailure

_WHOLE_BATCH = -1


class RequestError(Exception):
    """In place of a response: fails the request with a message and a code, without a line in the log.

    Args:
        code: An `ErrorCode`.
        message: The message for the client.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Rescheduled(Exception):  # noqa: N818  (it takes an error's place, and is none)
    """In place of a response: returns the request to the server, which schedules it again."""


def failure_of(error: BaseException, model: str, request: int = _WHOLE_BATCH) -> RequestFailure:
    """Converts an exception to a failure: one sentence for the client, the whole traceback for the server's log.

    Args:
        error: The exception that was raised or returned.
        model: The model's name.
        request: Which request failed; -1 for the whole batch.
    """
    if isinstance(error, Rescheduled):
        return RequestFailure(request, RESCHEDULE, "", "")
    if isinstance(error, RequestError):
        return RequestFailure(request, error.code, _as_c_string(str(error)), "")
    if isinstance(error, PyTritonValidationError):
        message = f"model {model!r}: {error}"
    else:
        message = f"model {model!r}: {type(error).__name__}: {error}"
    trace = "".join(traceback.format_exception(type(error), error, _from_callable(error.__traceback__))).rstrip()
    return RequestFailure(
        request, ErrorCode.INTERNAL, _as_c_string(message), f"model {model!r}: the inference callable failed\n{trace}"
    )


def _as_c_string(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _from_callable(trace: TracebackType | None) -> TracebackType | None:
    """Strips the frames of this package that lead to the user's code."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("pytriton."):
        trace = trace.tb_next
    return trace
