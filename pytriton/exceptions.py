"""Errors that PyTriton raises on the server's side."""

from __future__ import annotations


class PyTritonError(Exception):
    """Base of every error that PyTriton raises on the server's side.

    Args:
        message: What was wrong, in one sentence.
    """

    def __init__(self, message: str) -> None:
        """Store the message.

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


class PyTritonValidationError(PyTritonError):
    """Data that crosses the inference callable does not fit what was declared."""


class PyTritonInvalidOperationError(PyTritonError):
    """An operation was asked for at a moment when it cannot be done."""


class PyTritonBadParameterError(PyTritonError):
    """An argument has a value that cannot work."""


class PyTritonBindError(PyTritonBadParameterError, PyTritonValidationError):
    """A model cannot have such a name or such an inference callable."""


class PyTritonModelConfigError(PyTritonError):
    """The settings of a model contradict each other."""


class PyTritonUnrecoverableError(PyTritonError):
    """Raised by an inference callable that can serve no further request; the server shuts down."""


class PyTritonRuntimeError(PyTritonError):
    """Something outside of the program's own arguments failed while it ran."""


class PyTritonInferenceError(PyTritonError):
    """The server answered what an inference callable asked of it, another model's inference say, with an error.

    Args:
        message: The server's message.
        code: Of ``TRITONSERVER_Error_Code``: 2 is not found, 3 an invalid argument, 4 unavailable, 7 cancelled, ...

    Attributes:
        code: As above.
    """

    def __init__(self, message: str, code: int = 1) -> None:
        """Store the message and the code."""
        super().__init__(message)
        self.code = code
