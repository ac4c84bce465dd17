"""A blocking connection to a server."""

from __future__ import annotations

import _socket
import contextlib
import errno
import functools
import math
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from pytriton.client.core.connecting import keep_alive
from pytriton.client.core.http import hubs
from pytriton.client.core.http.api import Response
from pytriton.client.core.http.messages import BUFFER_BYTES, ResponseReader
from pytriton.client.core.tensors import Content
from pytriton.client.url import TritonUrl
from pytriton.utils.signals import comes_from_handler

_TOLERANCE_S = 0.001
"""How much the timeout of an operation may exceed the remaining time: setting it is a system call."""
_MAX_PARTS = 512  # per system call


class ConnectError(Exception):
    """The connection could not be made, for the reason in its cause."""


def late(timeout_s: float) -> ConnectError:
    """Returns the error of a connection that took too long, by its own timeout or the system's."""
    return ConnectError("no connection" + (f" after {timeout_s:g} s" if timeout_s < math.inf else ""))


class LostError(Exception):
    """The connection broke.

    Attributes:
        was_sent: Whether anything of the request may have been sent.
        has_begun: Whether anything of the response was received.
    """

    was_sent = True
    has_begun = False


class Connection:
    """A connection that carries one request at a time.

    Args:
        url: The server's URL.
        context: Returns the TLS context, given the module ``ssl``.
        hub: The gevent hub that it waits in; see `hubs.current_hub`.

    Attributes:
        is_new: Whether it has not been connected yet.
    """

    def __init__(self, url: TritonUrl, context: Callable[[Any], ssl.SSLContext] | None, hub: Any) -> None:
        """Does not connect yet."""
        self.is_new = True
        self._url = url
        self._context = context
        self._hub = hub
        self._sockets = hubs.sockets_for(hub)
        self._socket: Any = None
        self._poll: Any = None
        self._lookup: queue.SimpleQueue[Any] | None = None
        self._timeout_s: float | None = None
        self._deadline = 0.0
        self._sent_bytes = 0  # of the current request
        self._is_interrupted = False
        self._buffer = memoryview(bytearray(BUFFER_BYTES))

    def connect(self, deadline: float, timeout_s: float = math.inf) -> None:
        """Connects, and performs the TLS handshake.

        Args:
            deadline: The deadline, a `time.monotonic`.
            timeout_s: How long it may take before the deadline.

        Raises:
            TimeoutError: The deadline has passed.
            ConnectError: It failed, or took too long.
        """
        self._deadline = min(deadline, time.monotonic() + timeout_s)
        try:
            self._connect()
            if self._context is not None:
                self._encrypt(self._context(self._sockets.ssl))
        except (OSError, ValueError) as error:  # such as a file without a certificate
            if comes_from_handler(error):
                raise
            if isinstance(error, TimeoutError):
                if time.monotonic() >= deadline:
                    raise
                raise late(timeout_s) from error
            raise ConnectError(str(error)) from error
        self.is_new = False

    def is_alive(self) -> bool:
        """Returns whether an idle connection can be used: the server has neither closed it nor sent anything."""
        return not self._poll.poll(0)

    def exchange(self, parts: Sequence[Content], deadline: float) -> tuple[Response, bool]:
        """Sends a request and receives the response.

        Args:
            parts: The request; none of them is copied unless it is encrypted.
            deadline: The deadline, a `time.monotonic`.

        Returns:
            The response, and whether the connection can be used again.

        Raises:
            TimeoutError: It took longer.
            LostError: The connection broke.
            Exception: The response is not HTTP; see `messages.is_malformed`.
        """
        self._deadline = deadline
        reader = ResponseReader(self._buffer)
        self._sent_bytes = 0
        try:
            return self._exchange(parts, reader)
        finally:
            reader.close()

    def interrupt(self) -> None:
        """Makes a call in any other thread fail."""
        self._is_interrupted = True
        lookup, connected = self._lookup, self._socket
        if lookup is not None:
            lookup.put((None, ConnectionAbortedError("the client is closed")))
        if connected is not None:
            _shut_down(connected)

    def close(self) -> None:
        """Closes the connection, also for processes that were forked from this one."""
        connected, self._socket = self._socket, None
        if connected is not None:
            _shut_down(connected)
            with contextlib.suppress(OSError):
                connected.close()

    def _connect(self) -> None:
        addresses = self._addresses()
        failed: OSError | None = None
        for position, (family, kind, protocol, _, address) in enumerate(addresses):
            self._socket = connecting = self._sockets.socket.socket(family, kind, protocol)
            try:
                connecting.settimeout(self._left_s() / (len(addresses) - position))
                connecting.connect(address)
                connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                keep_alive(connecting)
                self._poll = self._sockets.select.poll()
                self._poll.register(connecting, self._sockets.select.POLLIN)
                return
            except OSError as error:
                failed = error
                self.close()
                if comes_from_handler(error):
                    break
        raise failed or OSError("the name has no address")

    def _encrypt(self, context: ssl.SSLContext) -> None:
        self._socket = context.wrap_socket(
            self._socket, server_hostname=self._url.hostname, do_handshake_on_connect=False
        )
        self._limit()
        self._socket.do_handshake()

    def _addresses(self) -> Any:
        module, host, port = self._sockets.socket, self._url.hostname, self._url.port
        with contextlib.suppress(socket.gaierror):
            return module.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        find = functools.partial(module.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        if self._hub is not None:
            with hubs.limited(self._left_s()):
                return find()
        return self._look_up(find)

    def _exchange(self, parts: Sequence[Content], reader: ResponseReader) -> tuple[Response, bool]:
        try:
            self._send(parts)
        except OSError as error:
            if _is_final(error):
                raise
            if not self._sent_bytes:
                raise self._lost(error, reader) from error
            # The server may have refused a large body and closed the connection, after sending a response.
            return self._receive(reader, error), False
        return self._receive(reader), reader.is_reusable

    def _send(self, parts: Sequence[Content]) -> None:
        is_encrypted = self._context is not None
        if is_encrypted and sum(map(len, parts)) <= BUFFER_BYTES:
            parts = [b"".join(parts)]
        while parts:
            self._limit()
            count = self._socket.send(parts[0]) if is_encrypted else self._socket.sendmsg(parts[:_MAX_PARTS])
            self._sent_bytes += count
            parts = _rest(parts, count)

    def _receive(self, reader: ResponseReader, failed: OSError | None = None) -> Response:
        while True:
            self._limit()
            try:
                count = self._socket.recv_into(reader.buffer)
            except OSError as error:
                if _is_final(error):
                    raise
                raise self._lost(failed or error, reader) from error
            if reader.received(count) if count else reader.ended():
                assert reader.response is not None
                return reader.response
            if not count:
                raise self._lost(failed or "it was closed", reader)

    def _lost(self, error: object, reader: ResponseReader) -> LostError:
        lost = LostError(str(error))
        lost.was_sent, lost.has_begun = self._sent_bytes > 0, reader.has_begun
        return lost

    def _limit(self) -> None:
        """Limits the next operation to the remaining time."""
        left_s = self._left_s()
        if self._timeout_s is None or abs(left_s - self._timeout_s) > _TOLERANCE_S:
            self._socket.settimeout(left_s)
            self._timeout_s = left_s

    def _left_s(self) -> float:
        if self._is_interrupted:
            raise ConnectionAbortedError("the client is closed")
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    def _look_up(self, find: Callable[[], Any]) -> Any:
        """Looks up a name in a temporary thread, because the lookup may hang."""
        results = self._lookup = queue.SimpleQueue()

        def look_up() -> None:
            try:
                results.put((find(), None))
            except BaseException as error:
                results.put((None, error))

        threading.Thread(target=look_up, name="pytriton-lookup", daemon=True).start()
        try:
            found, error = results.get(timeout=self._left_s())
        except queue.Empty:
            raise TimeoutError from None
        finally:
            self._lookup = None
        if error is not None:
            raise error
        return found


def _is_final(error: OSError) -> bool:
    """Returns whether a deadline has passed, or the program's handler of a signal ends the call.

    Otherwise the connection broke: the system's own timeout means that, too.
    """
    return (isinstance(error, TimeoutError) and error.errno != errno.ETIMEDOUT) or comes_from_handler(error)


def _rest(parts: Sequence[Content], count: int) -> list[Content]:
    """Returns the rest of the parts, after a number of bytes."""
    rest: list[Content] = []
    for part in parts:
        if count >= len(part):
            count -= len(part)
        else:
            rest.append(memoryview(part)[count:])
            count = 0
    return rest


def _shut_down(connected: Any) -> None:
    """Ends a connection for all threads, greenlets and processes, whatever class its socket has."""
    connected = getattr(connected, "_sock", connected)
    with contextlib.suppress(OSError):
        if isinstance(connected, _socket.socket):
            _socket.socket.shutdown(connected, socket.SHUT_RDWR)
        else:  # such as eventlet's
            connected.shutdown(socket.SHUT_RDWR)
