"""Errors of requests, and of models."""

from __future__ import annotations

from pytriton.proxy.wire.error_code import ErrorCode
from pytriton.python_backend.texts import text_of


class TritonError:
    """The error of an `InferenceResponse`, with its message and code.

    Args:
        message: The message for the client.
        code: What kind of error it is: ``TritonError.INTERNAL``, ``TritonError.INVALID_ARG`` and so on.

    Raises:
        TypeError: The message is not a string.
        ValueError: There is no such code.

    Examples:
        >>> error = TritonError("the image is empty", TritonError.INVALID_ARG)
        >>> error.message(), error.code() == TritonError.INVALID_ARG
        ('the image is empty', True)
    """

    UNKNOWN = ErrorCode.UNKNOWN.value
    INTERNAL = ErrorCode.INTERNAL.value
    NOT_FOUND = ErrorCode.NOT_FOUND.value
    INVALID_ARG = ErrorCode.INVALID_ARG.value
    UNAVAILABLE = ErrorCode.UNAVAILABLE.value
    UNSUPPORTED = ErrorCode.UNSUPPORTED.value
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS.value
    CANCELLED = ErrorCode.CANCELLED.value

    __slots__ = ("_code", "_message")

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        if not TritonError.UNKNOWN <= code <= TritonError.CANCELLED:
            raise ValueError(f"TritonError has code {code!r}: use one of its own, such as TritonError.INTERNAL")
        self._message = text_of(message, "the message of a TritonError")
        self._code = int(code)

    def message(self) -> str:
        """Returns the message for the client."""
        return self._message

    def code(self) -> int:
        """Returns the error code."""
        return self._code

    def __repr__(self) -> str:
        return f"TritonError({self._message!r}, code={self._code})"


class TritonModelException(Exception):  # noqa: N818  (the name that models know)
    """An error of a model, or of an invalid call of `pb_utils`."""

    def __str__(self) -> str:
        message = self.args[0] if len(self.args) == 1 else None
        return message.decode(errors="backslashreplace") if isinstance(message, bytes) else super().__str__()
