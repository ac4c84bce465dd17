"""Failures of requests: the message for the client, and the details for the server's log."""

from __future__ import annotations

import logging
import traceback
from types import TracebackType

from pytriton.exceptions import PyTritonInvalidRequestError, PyTritonValidationError
from pytriton.json_logs import is_enabled
from pytriton.proxy.wire.error_code import ErrorCode
from pytriton.proxy.wire.inference import RESCHEDULE, RequestFailure
from pytriton.proxy.wire.request_status import STATUSES, with_status

LOGGER = logging.getLogger(__name__)
CALLABLE_LOGGER = logging.getLogger("pytriton.callable")

_WHOLE_BATCH = -1
# In characters. The server copies a text for each request of the batch, so megabytes would slow it down.
_MAX_MESSAGE = 4096
_MAX_TRACE = 65536
_MAX_NAME = 100


class RequestError(Exception):
    """Fails a request with a message and a code, instead of a response.

    Args:
        code: An `ErrorCode`.
        message: The message for the client.
        detail: Details for the server's log; empty by default.
        name: The error's name in the server's metrics.
    """

    def __init__(self, code: int, message: str, detail: str = "", name: str = "TritonError") -> None:
        super().__init__(message)
        self.code = code
        self.detail = detail
        self.name = name


class Rescheduled(Exception):  # noqa: N818  (used like an error, but not one)
    """Returns a request to the server, which schedules it again, instead of a response."""


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
        text = _as_c_string(_shortened(str(error), _MAX_MESSAGE))
        return RequestFailure(request, error.code, text, error.detail, error.name)
    if isinstance(error, PyTritonInvalidRequestError):
        return _refusal_of(error, model, request)
    text = _shortened(_text_of(error), _MAX_MESSAGE)
    kind = type(error).__name__
    if not isinstance(error, PyTritonValidationError):
        text = f"{kind}: {text}" if text else kind
    message = f"model {model!r}: {text}"
    name = _as_c_string(kind[:_MAX_NAME])
    raised = type(error), error, _from_callable(error.__traceback__)
    detail = ""
    if is_enabled():  # here, where the request is known: the server's log would only have the text
        CALLABLE_LOGGER.error("model %r: the inference callable failed", model, exc_info=raised, extra={"model": model})
    else:
        trace = "".join(traceback.format_exception(*raised)).rstrip()
        detail = f"model {model!r}: the inference callable failed\n{_shortened(trace, _MAX_TRACE)}"
    return RequestFailure(request, ErrorCode.INTERNAL, _as_c_string(message), detail, name)


def _refusal_of(error: PyTritonInvalidRequestError, model: str, request: int) -> RequestFailure:
    status = STATUSES[error.status]
    text = with_status(status, _shortened(_text_of(error), _MAX_MESSAGE))
    LOGGER.debug("Model %r refused a request: %s", model, text)
    return RequestFailure(request, status.code, _as_c_string(text), "", PyTritonInvalidRequestError.__name__)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as failure:  # including SystemExit
        return f"<no text: {type(failure).__name__} in its __str__>"


def _shortened(text: str, most: int) -> str:
    """Returns a text without its middle if it is longer than ``most`` characters."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … [{len(text) - 2 * half} characters] … {text[-half:]}"


def _as_c_string(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _from_callable(trace: TracebackType | None) -> TracebackType | None:
    """Strips the frames of this package that lead to the user's code."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("pytriton."):
        trace = trace.tb_next
    return trace
