"""A limit on the memory of all bodies together."""

from __future__ import annotations

import http

from pytriton.gateway.errors import RETRY, RequestError

SMALL = 1 << 16
"""Bodies of up to this many bytes do not count: their number is limited by that of requests."""


class BodyBudget:
    """Counts the bytes of large bodies of requests and responses, and refuses requests for which there is no room.

    All calls must be made in the same event loop.

    Args:
        limit: Maximum size of all large bodies together, in bytes. A single body may be larger.
        max_stream_backlog: Maximum number of bytes of a stream that wait for its client.
    """

    def __init__(self, limit: int, max_stream_backlog: int) -> None:
        self._limit = limit
        self.max_stream_backlog = max_stream_backlog
        self.used = 0
        """Bytes of all large bodies in memory."""

    @property
    def is_exhausted(self) -> bool:
        """Whether there is no more room."""
        return self.used >= self._limit

    def check(self, size: int, held: int = 0) -> None:
        """Checks that there is room for a body.

        Args:
            size: Its size in bytes.
            held: The number of its bytes that are already counted.

        Raises:
            RequestError: There is no room.
        """
        others = self.used - held
        if others and others + size > self._limit:
            raise RequestError(
                http.HTTPStatus.SERVICE_UNAVAILABLE,
                f"The body has {size} bytes, and other bodies have {others}; the limit is {self._limit} for all "
                "(GatewayConfig.max_total_body_size): try again.",
                headers=RETRY | {"connection": "close"},
            )
