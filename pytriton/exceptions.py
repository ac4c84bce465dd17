"""Errors that PyTriton raises on the server's side."""

from __future__ import annotations

from typing import Any

# Maps each accepted name of a status to the name that clients receive.
_STATUSES = {
    "invalid_argument": "invalid_argument",
    "not_found": "not_found",
    "conflict": "conflict",
    "already_exists": "conflict",
    "too_many_requests": "too_many_requests",
    "resource_exhausted": "too_many_requests",
    "unavailable": "unavailable",
}


class PyTritonError(Exception):
    """Base of every error that PyTriton raises on the server's side.

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


class PyTritonValidationError(PyTritonError):
    """Data of an inference callable does not fit the declaration of its inputs or outputs."""


class PyTritonArrayError(PyTritonValidationError, ValueError):
    """Arrays have shapes, or a dtype, that do not fit each other or the batch.

    It is a ValueError too, because nvidia-pytriton raises NumPy's.
    """


class PyTritonInvalidOperationError(PyTritonError):
    """An operation is not possible at this moment, or the server refused it."""


class PyTritonContextError(PyTritonInvalidOperationError, PyTritonValidationError):
    """A function that needs the Triton context was called by something other than the server.

    It is a `PyTritonValidationError` too, because nvidia-pytriton raises that.
    """


class PyTritonBadParameterError(PyTritonError):
    """An argument has an invalid value."""


class PyTritonBindError(PyTritonBadParameterError, PyTritonValidationError):
    """A model's name or its inference callable is invalid."""


class PyTritonWorkspaceError(PyTritonBadParameterError, FileExistsError):
    """The folder cannot be a workspace: a file has this path, or another Triton uses the folder.

    It is a FileExistsError too, because nvidia-pytriton raises that.
    """


class PyTritonModelConfigError(PyTritonError):
    """The settings of a model contradict each other."""


class PyTritonUnrecoverableError(PyTritonError):
    """Raised by an inference callable that can serve no further requests: the server stops, and `serve` raises it."""


class PyTritonRuntimeError(PyTritonError):
    """Something failed at run time that is not a wrong argument: the server, the disk, the network."""


class PyTritonInvalidRequestError(PyTritonError):
    """Raised by an inference callable that refuses a request; the client gets the message, and the log no traceback.

    It fails every request of the call. To refuse one request of several, return it in place of that request's response;
    ``@sample`` does so by itself.

    Args:
        message: The message for the client.
        status: Why: ``invalid_argument`` (HTTP status 400), ``not_found`` (404), ``conflict`` or ``already_exists``
            (409), ``too_many_requests`` or ``resource_exhausted`` (429), ``unavailable`` (503). What Triton's own HTTP
            and gRPC ports make of each is listed in the documentation under "Errors".

    Attributes:
        status: As above; ``conflict`` and ``too_many_requests`` for either of their names.

    Raises:
        PyTritonBadParameterError: There is no such status.

    Examples:
        >>> PyTritonInvalidRequestError("there is no voice 'x'", status="not_found").status
        'not_found'
    """

    def __init__(self, message: str, status: str = "invalid_argument") -> None:
        """Stores the message and the status."""
        super().__init__(message)
        self.status = _checked_status(status)


class PyTritonInferenceError(PyTritonError):
    """A request that an inference callable has sent to the server failed, such as a call of another model.

    Args:
        message: The server's message.
        code: The code of ``TRITONSERVER_Error_Code``: 0 is unknown, 1 internal, 2 not found, 3 an invalid argument, 4
            unavailable, 5 unsupported, 6 already exists, 7 cancelled.

    Attributes:
        code: As above.
    """

    def __init__(self, message: str, code: int = 1) -> None:
        """Stores the message and the code."""
        super().__init__(message)
        self.code = code


def _checked_status(status: Any) -> str:
    if not isinstance(status, str) or status not in _STATUSES:
        raise PyTritonBadParameterError(
            f"status of PyTritonInvalidRequestError is {status!r}; use one of {', '.join(_STATUSES)}."
        )
    return _STATUSES[status]
