"""Failures of requests: the message for the client, and the details for the server's log."""

from __future__ import annotations

import logging
from types import TracebackType

from pytriton.exceptions import PyTritonInvalidRequestError, PyTritonValidationError
from pytriton.json_logs import is_enabled
from pytriton.proxy.wire.error_code import ErrorCode
from pytriton.proxy.wire.inference import RESCHEDULE, RequestFailure
from pytriton.proxy.wire.request_status import STATUSES, with_status
from pytriton.utils.console import log_safely
from pytriton.utils.error_text import name_of, shortened, text_of, traceback_of

LOGGER = logging.getLogger(__name__)
CALLABLE_LOGGER = logging.getLogger("pytriton.callable")

_WHOLE_BATCH = -1
# In characters. The server copies a text for each request of the batch, so megabytes would slow it down.
_MAX_MESSAGE = 4096
# In bytes, as gRPC encodes it: its clients refuse the headers of a response from 8 KiB on, and lose the text.
_MAX_ENCODED = 7168
_UNENCODED = bytes(set(range(0x20, 0x7F)) - {ord("%")})


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
        return RequestFailure(request, error.code, _for_client(str(error)), error.detail, error.name)
    if isinstance(error, PyTritonInvalidRequestError):
        return _refusal_of(error, model, request)
    text = text_of(error)
    kind = name_of(error)
    if not isinstance(error, PyTritonValidationError):
        text = f"{kind}: {text}" if text else kind
    raised = type(error), error, _from_callable(error.__traceback__)
    detail = ""
    if is_enabled():  # here, where the request is known: the server's log would only have the text
        message = "model %r: the inference callable failed"
        log_safely(CALLABLE_LOGGER, logging.ERROR, message, model, exc_info=raised, extra={"model": model})
    else:
        detail = f"model {model!r}: the inference callable failed\n{traceback_of(error, raised[2])}"
    message = f"model {model!r}: {_for_client(text)}"
    return RequestFailure(request, ErrorCode.INTERNAL, message, detail, _as_c_string(kind))


def _refusal_of(error: PyTritonInvalidRequestError, model: str, request: int) -> RequestFailure:
    status = STATUSES[error.status]
    text = with_status(status, _for_client(text_of(error)))
    LOGGER.debug("Model %r refused a request: %s", model, text)
    return RequestFailure(request, status.code, text, "", PyTritonInvalidRequestError.__name__)


def _for_client(text: str) -> str:
    """Returns a text without its middle if it is too long for a client, as a C string."""
    most = min(_MAX_MESSAGE, len(text))
    message = _as_c_string(shortened(text, most))
    while (size := _encoded_size(message)) > _MAX_ENCODED:
        most = most * _MAX_ENCODED // size
        message = _as_c_string(shortened(text, most))
    return message


def _encoded_size(text: str) -> int:
    data = text.encode()
    return len(data) + 2 * len(data.translate(None, _UNENCODED))


def _as_c_string(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _from_callable(trace: TracebackType | None) -> TracebackType | None:
    """Strips the frames of this package that lead to the user's code."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("pytriton."):
        trace = trace.tb_next
    return trace
