"""Errors that the clients raise."""

from __future__ import annotations

import enum


class Failure(enum.Enum):
    """Classifies how far a failed request got; see `PyTritonClientInferenceServerError`.

    Attributes:
        UNREACHABLE: Nothing listens at the address; nothing was sent.
        BUSY: The server does not accept requests now; nothing was executed.
        NOT_SERVED: The server has no such model, or it is not ready; nothing was executed.
        RESTRICTED: The endpoint requires an access token; nothing was executed.
        REFUSED: Another error of the server or the model.
        LOST: The connection broke; the request may have been executed.
        MALFORMED: The response does not come from Triton; it may come from a proxy.
    """

    UNREACHABLE = "unreachable"
    BUSY = "busy"
    NOT_SERVED = "not served"
    RESTRICTED = "restricted"
    REFUSED = "refused"
    LOST = "lost"
    MALFORMED = "malformed"


class PyTritonClientError(Exception):
    """Base of every error that the clients raise.

    Args:
        message: What was wrong, in one sentence.
    """

    def __init__(self, message: str) -> None:
        """Stores the message.

        Args:
            message: What was wrong, in one sentence.
        """
        super().__init__(message)
        self._message = message

    @property
    def message(self) -> str:
        """The reason, in one sentence."""
        return self._message

    def __str__(self) -> str:
        """Returns the message."""
        return self._message


class PyTritonClientValueError(PyTritonClientError, ValueError):
    """An argument has an invalid value; nothing was sent."""


class PyTritonClientInvalidUrlError(PyTritonClientValueError):
    """A URL is not valid."""


class PyTritonClientTimeoutError(PyTritonClientError):
    """The server or the model was not ready, or did not respond, in time."""


class PyTritonClientModelUnavailableError(PyTritonClientError):
    """The server is ready but the model is not: it does not exist, is not loaded, or failed to load."""


class PyTritonClientModelNotReadyError(PyTritonClientModelUnavailableError, PyTritonClientTimeoutError):
    """A wait for the model timed out: the server is ready, but the model is not.

    It is a `PyTritonClientTimeoutError` too, so that loops that continue to wait after a timeout do so in this case.
    """


class PyTritonClientClosedError(PyTritonClientError):
    """The client was used after it was closed."""


class PyTritonClientModelDoesntSupportBatchingError(PyTritonClientError):
    """A batch was sent to a model without batching."""


class PyTritonClientInferenceServerError(PyTritonClientError):
    """The server responded with an error, the response does not come from Triton, or the connection broke.

    Attributes:
        failure: How far the request got, and so whether it is safe to send it again.
    """

    failure: Failure = Failure.REFUSED


class PyTritonClientInputError(PyTritonClientValueError, PyTritonClientInferenceServerError):
    """The request does not fit the model: its inputs, its batch size, or the kind of client; nothing was sent.

    It is a `PyTritonClientInferenceServerError` too, because clients that leave the check to the server raise that.
    """


class PyTritonClientQueueTimeoutError(PyTritonClientTimeoutError, PyTritonClientInferenceServerError):
    """The server rejected the request, which had waited in the model's queue for longer than its timeout.

    It is a `PyTritonClientInferenceServerError` too, because nvidia-pytriton's clients raise that.
    """


class PyTritonClientUnreachableError(PyTritonClientTimeoutError, PyTritonClientInferenceServerError):
    """A server could no longer be reached, even when the request was sent again; nothing was executed.

    It is a `PyTritonClientTimeoutError` too, because nvidia-pytriton's clients raise that over HTTP.
    """

    failure = Failure.UNREACHABLE


class PyTritonClientInvalidRequestError(PyTritonClientInferenceServerError):
    """The server or the model refused the request for a given reason; the same request would be refused again.

    A model does so with `pytriton.exceptions.PyTritonInvalidRequestError`, or with a code of ``pb_utils.TritonError``.
    With the statuses ``too_many_requests`` and ``unavailable``, the request may be sent again later: ``failure`` is
    then `Failure.BUSY`.

    Attributes:
        status: ``invalid_argument``, ``not_found``, ``conflict``, ``too_many_requests`` or ``unavailable``.
        http_status: The corresponding HTTP status: 400, 404, 409, 429 or 503.
        reason: The message of the server or the model.
    """

    status: str = "invalid_argument"
    http_status: int = 400
    reason: str = ""


class PyTritonClientQueueFullError(PyTritonClientError):
    """The client's queue is full."""
