"""The memory that all bodies together may take."""

from __future__ import annotations

import http

from pytriton.gateway.errors import RETRY, RequestError

SMALL = 1 << 16
"""Bytes up to which a body does not count: how many of those there are is limited by the number of requests."""


class BodyBudget:
    """Counts the bytes of large bodies, of requests and responses, and refuses more requests than there is room for.

    Used in one event loop.

    Args:
        limit: Bytes that large bodies may have together. One that comes alone may have more.
        max_stream_backlog: Bytes of one stream that may wait for its client.
    """

    def __init__(self, limit: int, max_stream_backlog: int) -> None:
        self._limit = limit
        self.max_stream_backlog = max_stream_backlog
        self.used = 0
        """Bytes of all bodies that are in memory."""

    @property
    def is_exhausted(self) -> bool:
        """Whether there is no more room."""
        return self.used >= self._limit

    def check(self, size: int, held: int = 0) -> None:
        """Checks that there is room for a body.

        Args:
            size: How many bytes it has.
            held: How many of them count already.

        Raises:
            RequestError: There is none.
        """
        others = self.used - held
        if others and others + size > self._limit:
            raise RequestError(
                http.HTTPStatus.SERVICE_UNAVAILABLE,
                f"Other bodies have {others} bytes, and this one {size}; {self._limit} is the limit of all "
                "(GatewayConfig.max_total_body_size): try again.",
                headers=RETRY | {"connection": "close"},
            )
