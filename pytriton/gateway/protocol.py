"""HTTP with limits on what a client may send before its request is complete: headers, time, connections."""

from __future__ import annotations

import asyncio
import http
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pytriton.gateway.config import GatewayConfig
from pytriton.gateway.request import cancel

_HEAD = b"HTTP/1.1 "
_INTERIM = b"HTTP/1.1 1"  # 100 Continue, for which the client waits


class HeadHoldingTransport:
    """A transport that sends the head of a response together with its body, or with its first part.

    uvicorn writes each of them, which would be two system calls and two packets. The gateway has both when it sends the
    head.

    Args:
        transport: The connection's transport.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Sends a body, or holds a head until the body comes."""
        if self._transport.is_closing():
            return  # the client has just gone; uvloop would raise an exception
        if self._head:
            head, self._head = self._head, b""
            self._transport.writelines((head, data))
        elif data.startswith(_HEAD) and not data.startswith(_INTERIM) and data.endswith(b"\r\n\r\n"):
            self._head = data
        else:
            self._transport.write(data)

    def is_closing(self) -> bool:
        """Returns whether the connection is being closed."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Closes the connection when all is sent."""
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        """Sends a head that has no body."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which has no limit on headers, and waits for a request for any time."""

    limits: GatewayConfig
    """Set by `protocol_of`."""

    _response: HeadHoldingTransport
    _timer: asyncio.TimerHandle | None = None
    _deadline: float | None = None  # of the arrival of a request; None while one is being served
    _in_head = True
    _has_begun = False
    _received = 0  # bytes of a head that is not complete
    _body: list[bytes]  # which is not complete
    _body_size = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Closes the connection if there are too many."""
        self._response = HeadHoldingTransport(transport)
        super().connection_made(self._response)  # type: ignore[arg-type]
        if len(self.connections) > self.limits.max_connections:
            transport.close()
            return
        self._deadline = self.loop.time() + self.limits.read_timeout_s
        self._look_at_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the connection, and cancels the request that is being served."""
        self._stop_timer()
        super().connection_lost(exc)
        if self.cycle is not None and not self.cycle.response_complete:
            cancel(self.cycle.scope)  # type: ignore[arg-type]  # a dictionary, of which uvicorn knows the keys

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
        self._body, self._body_size = [], 0
        self._in_head = self._has_begun = True
        self._deadline = self.loop.time() + self.limits.read_timeout_s

    def on_headers_complete(self) -> None:
        """Starts the application, unless the headers are too large."""
        size = len(self.url)
        for name, value in self.headers:
            size += len(name) + len(value)
        if size > self.limits.max_header_size:
            self._refuse(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return
        self._in_head, self._received = False, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Keeps a part of a body until all of it has come, which saves copies, unless it is too large."""
        self._body.append(body)
        self._body_size += len(body)
        if self._body_size > self.limits.max_body_size:
            self._pass_body_on()

    def on_message_complete(self) -> None:
        """Ends a request."""
        self._pass_body_on()
        if not self.cycle.response_complete:
            self._deadline = None
        self._in_head, self._has_begun = True, False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Goes on with the next request."""
        self._response.flush()
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        # As uvicorn does, but for its timer for the next request: see `_look_at_clock`.
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._deadline = self.loop.time() + self.timeout_keep_alive

    def _pass_body_on(self) -> None:
        body, self._body = b"".join(self._body), []
        cycle = self.cycle
        if body and not cycle.body and len(body) <= self.limits.max_body_size and not cycle.response_complete:
            cycle.body = body  # type: ignore[assignment]  # of which uvicorn would make a copy
        elif body:
            super().on_body(body)

    def _look_at_clock(self) -> None:
        """Refuses a request that is late; looks again when it, or one that begins right now, would be."""
        now = self.loop.time()
        if self._deadline is not None and now >= self._deadline:
            self._refuse(http.HTTPStatus.REQUEST_TIMEOUT)
            return
        # One timer for all requests of a connection: one for each would take microseconds.
        in_s = min(self.limits.read_timeout_s, self.timeout_keep_alive)
        if self._deadline is not None:
            in_s = min(in_s, self._deadline - now)
        self._timer = self.loop.call_later(in_s, self._look_at_clock)

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
