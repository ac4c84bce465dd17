"""HTTP with limits on what a client may send before its request is complete: headers, time, connections."""

from __future__ import annotations

import asyncio
import http

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pytriton.gateway.config import GatewayConfig


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which has no limit on headers, and waits for a request for any time."""

    limits: GatewayConfig
    """Set by `protocol_of`."""

    _timer: asyncio.TimerHandle | None = None
    _in_head = True
    _has_begun = False
    _received = 0  # bytes of a head that is not complete
    _head_size = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Closes the connection if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            transport.close()
            return
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Takes a part of a request."""
        if self._in_head:
            self._received += len(data)
        super().data_received(data)
        if self._in_head and self._received > self.limits.max_header_size:
            self._refuse(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def on_message_begin(self) -> None:
        """Begins a request."""
        super().on_message_begin()
        self._in_head, self._has_begun, self._head_size = True, True, 0
        self._start_timer()

    def on_url(self, url: bytes) -> None:
        """Takes a part of the URL."""
        self._head_size += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header."""
        self._head_size += len(name) + len(value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Starts the application, unless the headers are too large."""
        if self._head_size > self.limits.max_header_size:
            self._refuse(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return
        self._in_head, self._received = False, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Ends a request."""
        self._stop_timer()
        self._in_head, self._has_begun = True, False
        super().on_message_complete()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self.limits.read_timeout_s, self._refuse, http.HTTPStatus.REQUEST_TIMEOUT)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: http.HTTPStatus) -> None:
        self._stop_timer()
        if not self.transport.is_closing():
            if self._in_head and self._has_begun:
                self.transport.write(
                    b"HTTP/1.1 %d %s\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                    % (status, status.phrase.encode())
                )
            self.transport.close()


def protocol_of(config: GatewayConfig) -> type[LimitedProtocol]:
    """Returns the protocol with some limits."""
    return type("Protocol", (LimitedProtocol,), {"limits": config})
