"""Why a request fails, and what its client and the server's log are told."""

from __future__ import annotations

import traceback
from types import TracebackType

from pytriton.exceptions import PyTritonValidationError
from pytriton.proxy.wire.error_code import ErrorCode
from pytriton.proxy.wire.inference import RESCHEDULE, RequestFailure

_WHOLE_BATCH = -1


class RequestError(Exception):
    """In place of a response: the request fails with this message and code, and nothing of it is logged.

    Args:
        code: An `ErrorCode`.
        message: What the client is told.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Rescheduled(Exception):  # noqa: N818  (it takes an error's place, and is none)
    """In place of a response: the request goes back to the server, which sends it again."""


def failure_of(error: BaseException, model: str, request: int = _WHOLE_BATCH) -> RequestFailure:
    """The failure that an exception is: one sentence for the client, the whole traceback for the server's log.

    Args:
        error: What was raised or returned.
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
    """The traceback from the user's code on, without the frames of this package that lead there."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("pytriton."):
        trace = trace.tb_next
    return trace
