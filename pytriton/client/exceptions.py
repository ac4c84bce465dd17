"""Errors that the clients raise."""

from __future__ import annotations

import enum


class Failure(enum.Enum):
    """Classifies how far a failed request got; see `PyTritonClientInferenceServerError`.

    Attributes:
        UNREACHABLE: Nobody listens there; nothing was sent.
        BUSY: The server answered that it does not take the request now; nothing was executed.
        NOT_SERVED: The server answered that it has no such model, or has it not ready; nothing was executed.
        RESTRICTED: The endpoint wants an access token; nothing was executed.
        REFUSED: The server answered with another error, its own or the model's.
        LOST: The connection broke; the request may have been executed.
        MALFORMED: The response is none of Triton's; it may be a proxy's.
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


class PyTritonClientValueError(PyTritonClientError):
    """An argument has a value that cannot work; nothing was sent."""


class PyTritonClientInvalidUrlError(PyTritonClientValueError):
    """A URL is none of a Triton server."""


class PyTritonClientTimeoutError(PyTritonClientError):
    """The server or the model did not get ready, or did not respond, in time."""


class PyTritonClientModelUnavailableError(PyTritonClientError):
    """The server is ready and the model is not: it is not there, not loaded, or failed to load."""


class PyTritonClientClosedError(PyTritonClientError):
    """The client was used after it was closed."""


class PyTritonClientModelDoesntSupportBatchingError(PyTritonClientError):
    """A batch was given to a model that takes single requests."""


class PyTritonClientInferenceServerError(PyTritonClientError):
    """The server answered with an error, or not as a Triton server does, or broke the connection.

    Attributes:
        failure: How far the request got, and so whether it is safe to send it again.
    """

    failure: Failure = Failure.REFUSED


class PyTritonClientQueueFullError(PyTritonClientError):
    """As many requests wait in the client's queue as it may hold."""
