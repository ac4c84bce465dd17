"""The server's trace of a request."""

from __future__ import annotations


class InferenceTrace:
    """The trace of a request, as ``request.trace()`` returns it.

    Args:
        number: The trace's number in the server; 0 if the request is not traced.
        context: The OpenTelemetry context of the request's span, as JSON; empty if there is none.

    Examples:
        >>> InferenceTrace(7, '{"traceparent": "00-…"}').get_context()
        '{"traceparent": "00-…"}'
        >>> InferenceTrace().get_context() is None
        True
    """

    __slots__ = ("_context", "_number")

    def __init__(self, number: int = 0, context: str = "") -> None:
        self._number = number
        self._context = context

    def id(self) -> int:
        """Returns the trace's number; 0 if the request is not traced."""
        return self._number

    def get_context(self) -> str | None:
        """Returns the OpenTelemetry context as JSON, for a propagator; None if the server does not use it."""
        return self._context or None

    def __repr__(self) -> str:
        return f"InferenceTrace({self._number}, {self._context!r})"
