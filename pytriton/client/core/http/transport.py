"""The blocking transport over HTTP."""

from __future__ import annotations

import contextlib
import functools
import ssl
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from pytriton.client.core import failures
from pytriton.client.core.connecting import ConnectOptions
from pytriton.client.core.http import api, hubs, messages
from pytriton.client.core.http.connection import ConnectError, Connection, LostError
from pytriton.client.core.port_probe import other_protocol
from pytriton.client.core.tensors import Content
from pytriton.client.exceptions import PyTritonClientInferenceServerError
from pytriton.client.tls import TLSConfig
from pytriton.client.url import TritonUrl
from pytriton.utils.signals import comes_from_handler

_NO_HEADERS: Mapping[str, str] = {}
_MAX_IDLE = 128


class HttpTransport:
    """Connections to a server, which any number of threads may use: one for each request in flight.

    Args:
        url: The server's URL.
        options: How to connect.
    """

    def __init__(self, url: TritonUrl, options: ConnectOptions) -> None:
        """Stores the arguments; connects on first use."""
        self.url = url
        self._context = functools.cache(functools.partial(context_of, options.tls)) if url.secure else None
        self._connect_timeout_s = options.timeout_s
        self._head = messages.RequestHead(url)
        self._idle: list[Connection] = []
        self._idle_of_hubs: weakref.WeakKeyDictionary[Any, list[Connection]] = weakref.WeakKeyDictionary()
        self._busy: set[Connection] = set()
        self._closed = False

    def other_protocol(self) -> PyTritonClientInferenceServerError | None:
        """See `Transport.other_protocol`."""
        return other_protocol(self.url)

    def load(self) -> None:
        """Imports the parser of responses."""
        import httptools  # noqa: F401

    def call(
        self, method: str, timeout_s: float, *args: Any, headers: Mapping[str, str] = _NO_HEADERS, **kwargs: Any
    ) -> Any:
        """Calls a method of the API; see `Transport.call`."""
        deadline = time.monotonic() + timeout_s
        call = api.call_of(method, *args, **kwargs)
        parts = (self._head.of(call, headers, sum(map(len, call.parts))), *call.parts)
        try:
            response = self._exchange(parts, deadline, is_repeatable=call.verb == "GET")
            return call.read(response.to(headers))
        except Exception as error:
            if comes_from_handler(error):
                raise
            if self._closed:
                raise failures.closed_meanwhile() from None
            raise translated(self.url.with_scheme, error, timeout_s) from error.__cause__

    def close(self) -> None:
        """Closes all connections; calls that wait for a response end with an error."""
        self._closed = True
        for busy in list(self._busy):
            busy.interrupt()
        for pool in (self._idle, *self._idle_of_hubs.values()):
            _close_all(pool)

    def _exchange(self, parts: Sequence[Content], deadline: float, *, is_repeatable: bool) -> api.Response:
        """Sends a request and receives the response.

        A connection may break while it is idle. If that is noticed too late, the request is resent if that is safe:
        nothing was sent, or it is read-only.
        """
        hub = hubs.current_hub()
        pool = self._idle if hub is None else self._idle_of_hubs.setdefault(hub, [])
        connection = _taken_from(pool)
        if connection is not None:
            try:
                return self._exchange_over(connection, pool, parts, deadline)
            except LostError as error:
                if error.has_begun or (error.was_sent and not is_repeatable):
                    raise
        return self._exchange_over(Connection(self.url, self._context, hub), pool, parts, deadline)

    def _exchange_over(
        self, connection: Connection, pool: list[Connection], parts: Sequence[Content], deadline: float
    ) -> api.Response:
        is_reusable = False
        self._busy.add(connection)
        try:
            if self._closed:
                raise failures.closed_meanwhile()
            if connection.is_new:
                connection.connect(deadline, self._connect_timeout_s)
            response, is_reusable = connection.exchange(parts, deadline)
        finally:
            self._busy.discard(connection)
            if is_reusable and len(pool) < _MAX_IDLE:
                pool.append(connection)
            else:
                connection.close()
            if self._closed:
                _close_all(pool)
        return response


def _taken_from(pool: list[Connection]) -> Connection | None:
    """Takes the most recently used connection, and closes those that broke meanwhile."""
    while True:
        try:
            connection = pool.pop()
        except IndexError:
            return None
        if connection.is_alive():
            return connection
        connection.close()


def _close_all(pool: list[Connection]) -> None:
    with contextlib.suppress(IndexError):  # other threads take from it, too
        while True:
            pool.pop().close()


def context_of(tls: TLSConfig, module: Any = ssl) -> ssl.SSLContext:
    """Creates the TLS context.

    Args:
        tls: The settings.
        module: Python's module ``ssl``, or gevent's.

    Raises:
        OSError: A file has no certificate.
    """
    context: ssl.SSLContext = module.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if tls.root_certificates is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(cafile=tls.root_certificates)
    if tls.certificate_chain is not None:
        context.load_cert_chain(tls.certificate_chain, tls.private_key)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def translated(url: str, error: Exception, timeout_s: float) -> Exception:
    """Translates the error of a call.

    Args:
        url: The server's URL.
        error: The exception.
        timeout_s: The timeout of the call.
    """
    if isinstance(error, api.StatusError):
        return api.translated(url, error)
    if isinstance(error, TimeoutError):
        return failures.timed_out(url, timeout_s)
    if isinstance(error, ConnectError):
        return failures.unreachable(url, error)
    if isinstance(error, LostError):
        return failures.lost(url, error)
    if isinstance(error, failures.NOT_DECODED) or messages.is_malformed(error):
        return failures.malformed(url, error)
    return error
