"""HTTP with limits on clients: their time to send and to receive, headers, connections."""

from __future__ import annotations

import asyncio
import http
import socket
import struct
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from pytriton.gateway.config import GatewayConfig
from pytriton.gateway.errors import RequestError
from pytriton.gateway.json_tensors import encode
from pytriton.gateway.request import CANCELLED_BY_SERVER, cancel
from pytriton.utils.limits import has_spare_files

_HEAD = b"HTTP/1.1 "
_INTERIM = b"HTTP/1.1 1"  # 100 Continue, for which the client waits
_SHORT_KEEP_ALIVE_S = 5.0  # while many connections are open
_LINGER_S = 5.0  # to receive the rest of a refused body
_PART = 1 << 16  # bytes of a body that are passed on at a time
_MAX_UNREAD = 1 << 18  # bytes of a body that the application does not read, as from a client without a key
_MAX_HEADERS = 200  # of a request; each takes many times its size
_MAX_PIPELINED = 100  # requests of a connection that are being served or wait; each takes kilobytes


class ResponseTransport:
    """A transport that sends the head of a response together with its body, or with its first part.

    uvicorn writes them one by one, which takes two system calls and two packets. The gateway has both when it sends the
    head.

    Args:
        transport: The connection's transport.
        close: Called when the response is complete and the connection is to be closed.
    """

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self._close = close
        self._head = b""
        self._written = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Sends a body, or holds a head back until its body follows."""
        if self._transport.is_closing():
            return  # the client has just disconnected; uvloop would raise an exception
        self._written += len(data)
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
        """Closes the connection once everything is sent."""
        self.flush()
        self._close()

    def close_now(self) -> None:
        """Closes the connection once everything is sent, even if the client is still sending."""
        self._transport.close()

    def flush(self) -> None:
        """Sends a head that has no body."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    @property
    def unsent(self) -> int:
        """The number of bytes that wait until the client receives them."""
        return self._transport.get_write_buffer_size()

    @property
    def sent(self) -> int:
        """The number of bytes that the client has received, as far as this process knows."""
        return self._written - self.unsent


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with limits on headers and on the time to wait for a client, which uvicorn lacks."""

    limits: GatewayConfig
    """Set by `protocol_of`."""

    _response: ResponseTransport
    _timer: asyncio.TimerHandle | None = None
    _deadline: float | None = None  # for a request to arrive; None while one is being served
    _in_head = True
    _has_begun = False
    _received = 0  # bytes since the last head or part of a body was complete
    _body: bytes | bytearray = b""  # received, but not passed on yet
    _keep_alive = True  # if the request is complete before the response begins
    _is_over = False  # data that arrives from now on is dropped
    _is_full = False  # as above, but the requests that have arrived are still served
    _sent = 0  # at the last progress
    _sent_at = 0.0
    _cycles: list[RequestResponseCycle]  # requests that are being served, or wait

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accepts the connection, or closes it if there are too many."""
        self._response = ResponseTransport(transport, self._close)
        self._cycles = []
        super().connection_made(self._response)  # type: ignore[arg-type]
        descriptor = transport.get_extra_info("socket").fileno()
        if len(self.connections) > self.limits.max_connections or not has_spare_files(descriptor):
            self._is_over = True
            transport.close()
            return
        self._deadline = self.loop.time() + self.limits.read_timeout_s
        self._check_time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the connection, and cancels the requests that are being served."""
        self._stop_timer()
        self._is_over = True
        super().connection_lost(exc)
        for cycle in self._cycles:
            if not cycle.response_complete:
                self._end_request(cycle)
        self.pipeline.clear()

    @staticmethod
    def _end_request(cycle: RequestResponseCycle) -> None:
        """Cancels a request, which sends nothing any more."""
        cycle.disconnected = True
        cycle.message_event.set()
        cancel(cycle.scope)  # type: ignore[arg-type]  # a dictionary, of which uvicorn knows the keys

    def shutdown(self) -> None:
        """Closes the connection, at the latest when the response has been sent."""
        self._keep_alive = False
        super().shutdown()

    def data_received(self, data: bytes) -> None:
        """Receives a part of a request."""
        if self._is_over or self._is_full:
            return
        self._received += len(data)
        try:
            self._parse(memoryview(data))
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        # A head may be too large, or the trailer of a body of chunks.
        if not (self._is_over or self._is_full) and self._received > self.limits.max_header_size:
            self._refuse_headers()

    def _parse(self, data: memoryview) -> None:
        """Parses requests, and ignores upgrades to other protocols, such as HTTP/2 or WebSocket.

        The parser would treat the body of such a request as data of that protocol, or as the next request.
        """
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                head = self._head_without_upgrade()
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
                self.parser.feed_data(head)

    def _head_without_upgrade(self) -> bytes:
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise httptools.HttpParserError("This is not a proxy.")
        lines = [b"%s %s HTTP/%s" % (method, self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                value = b"close" if b"close" in value.lower() else b"keep-alive"
            if name != b"upgrade":
                lines.append(b"%s: %s" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header of the head, if there are not too many.

        A trailer, which is behind the body, must not replace headers that a proxy in front has checked.
        """
        if not self._in_head or self._is_over or self._is_full:
            return
        if len(self.headers) >= _MAX_HEADERS:
            self._refuse(
                http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"The request has more than {_MAX_HEADERS} headers."
            )
            raise ValueError("too many headers")  # ends the parser
        super().on_header(name, value)

    def send_400_response(self, msg: str) -> None:
        """Refuses data that is not HTTP."""
        if not (self._is_over or self._is_full):
            self._refuse(http.HTTPStatus.BAD_REQUEST, msg)

    def _drop_further_requests(self) -> None:
        """Serves the requests that have arrived, and closes the connection; the last response tells the client so."""
        self._is_full = True
        if not self._in_head:  # of the last one, the body has not arrived
            self._cycles.pop()
            self.pipeline.popleft()
        self._deadline = None
        self._cycles[-1].keep_alive = False

    def on_message_begin(self) -> None:
        """Begins a request, unless too many others of the connection wait for their responses."""
        super().on_message_begin()
        if self._is_full:
            return
        if len(self._cycles) >= _MAX_PIPELINED:
            self._drop_further_requests()
            return
        self._body = b""
        self._in_head = self._has_begun = True
        self._deadline = self.loop.time() + self.limits.read_timeout_s

    def on_headers_complete(self) -> None:
        """Starts the application, unless the headers are too large, or do not name the host.

        A request with several hosts may be one host's for this server, and another's for a proxy in front (RFC 9112,
        section 3.2).
        """
        if self._is_over or self._is_full or self.parser.should_upgrade():  # see `_parse`
            return
        size, hosts = len(self.url), 0
        for name, value in self.headers:
            size += len(name) + len(value)
            hosts += name == b"host"
        if size > self.limits.max_header_size:
            self._refuse_headers()
            return
        if hosts != 1 and (hosts or self.parser.get_http_version() != "1.0"):
            self.send_400_response("The request must have one Host header.")
            return
        super().on_headers_complete()
        self._in_head, self._received = False, 0
        cycle = self.cycle
        cycle.scope[CANCELLED_BY_SERVER] = True  # type: ignore[literal-required]
        self._cycles.append(cycle)
        # The unread rest of a body must not be parsed as the next request.
        self._keep_alive, cycle.keep_alive = cycle.keep_alive, False

    def on_body(self, body: bytes) -> None:
        """Collects small parts of a body, which saves copies, and passes them on."""
        self._received = 0
        if self._is_over or self._is_full or self.cycle.response_complete:
            return
        if not self._body:
            self._body = body
        elif isinstance(self._body, bytearray):
            self._body += body
        else:
            self._body = bytearray(self._body + body)
        if len(self._body) > min(_PART, self.limits.max_body_size):
            self._pass_body_on()
            if len(self.cycle.body) > _MAX_UNREAD:
                self.flow.pause_reading()
            self.cycle.message_event.set()

    def on_message_complete(self) -> None:
        """Ends a request."""
        if self._is_over or self._is_full or self.parser.should_upgrade():
            return
        cycle = self.cycle
        self._pass_body_on()
        if not cycle.response_complete:
            self._deadline = None
        if not cycle.response_started:
            cycle.keep_alive = self._keep_alive
        self._in_head, self._has_begun = True, False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Continues with the next request."""
        self._response.flush()
        if self._cycles:
            del self._cycles[0]
        if self._is_over:
            return
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        # As uvicorn does, except for its timer for the next request: see `_check_time`.
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._deadline = self.loop.time() + self._keep_alive_s()

    def _keep_alive_s(self) -> float:
        """Returns how long the connection may wait for a request, after it has had one."""
        timeout_s = self.limits.keep_alive_timeout_s
        if 2 * len(self.connections) <= self.limits.max_connections:
            return timeout_s
        return min(timeout_s, _SHORT_KEEP_ALIVE_S)

    def _pass_body_on(self) -> None:
        body, self._body = self._body, b""
        cycle = self.cycle
        if body and not cycle.response_complete:
            cycle.body = cycle.body + body if cycle.body else body  # type: ignore[assignment]  # uvicorn would copy it

    def _check_time(self) -> None:
        """Refuses a request that is late, and ends a connection whose client receives nothing of a response.

        A connection has one timer for all of its requests, since one for each would take microseconds. It is set to the
        time at which a request that begins now would be late.
        """
        now = self.loop.time()
        sent = self._response.sent
        if sent != self._sent or not self._response.unsent:
            self._sent, self._sent_at = sent, now
        elif now - self._sent_at >= self.limits.read_timeout_s:
            self._abort()
            return
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            self._refuse(
                http.HTTPStatus.REQUEST_TIMEOUT,
                f"The request did not arrive within {self.limits.read_timeout_s:g} s (GatewayConfig.read_timeout_s).",
            )
        in_s = min(self.limits.read_timeout_s, self._keep_alive_s())
        if self._deadline is not None:
            in_s = min(in_s, self._deadline - now)
        self._stop_timer()
        self._timer = self.loop.call_later(in_s, self._check_time)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse_headers(self) -> None:
        self._refuse(
            http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"The URL and the headers have more than {self.limits.max_header_size} bytes, which is the limit "
            "(GatewayConfig.max_header_size).",
        )

    def _refuse(self, status: http.HTTPStatus, message: str) -> None:
        """Refuses the request that is being received, and closes the connection.

        If earlier requests still wait for their responses, it gets none, since that would be taken for theirs.
        """
        if self._is_over:
            self._response.close_now()
            return
        if self._cycles[:-1] or (self._cycles and self._in_head):
            self._drop_further_requests()
            return
        self._is_over = True
        self._response.flush()
        if self._cycles and not self._cycles[0].response_started:
            self._end_request(self._cycles[0])
        elif self._cycles or (status == http.HTTPStatus.REQUEST_TIMEOUT and not self._has_begun):
            self._response.close_now()
            return
        self._write_error(status, message)
        if status == http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE and not self._cycles:
            self._linger()
        else:
            self._response.close_now()

    def _write_error(self, status: http.HTTPStatus, message: str) -> None:
        """Sends a response of JSON, after which the connection is closed."""
        body = encode(RequestError(status, message).body())
        head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self._response.write(head % (status, status.phrase.encode(), len(body)))
        self._response.write(body)

    def _close(self) -> None:
        """Closes the connection after a response, at once if the whole request has been read."""
        if (self._in_head and not self._is_full) or self._is_over:
            self._is_over = True
            self._response.close_now()
        else:
            self._linger()

    def _linger(self) -> None:
        """Closes the connection once the client has sent the refused request: a reset could discard the response."""
        self._is_over = True
        self._body = b""
        if self._response.is_closing():
            return
        if self._response.can_write_eof():
            self._response.write_eof()
        self.flow.resume_reading()
        self._deadline = self.loop.time() + min(_LINGER_S, self.limits.read_timeout_s)
        self._check_time()

    def _abort(self) -> None:
        self._is_over = True
        self._stop_timer()
        connection = self._response.get_extra_info("socket")
        if connection is not None:  # otherwise, the kernel would keep trying to send the rest
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._response.abort()


def protocol_of(config: GatewayConfig) -> type[LimitedProtocol]:
    """Returns a protocol with the limits of a configuration."""
    return type("Protocol", (LimitedProtocol,), {"limits": config})
