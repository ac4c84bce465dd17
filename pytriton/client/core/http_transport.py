"""Transports over HTTP, through tritonclient: blocking, and in asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import json
import os
import select
import ssl
import threading
from collections.abc import Sequence
from typing import Any

from pytriton.client.core import failures, fork_safety, gevent_hub
from pytriton.client.core.loop_thread import is_being_cancelled
from pytriton.client.core.port_probe import other_protocol
from pytriton.client.exceptions import PyTritonClientClosedError, PyTritonClientInferenceServerError
from pytriton.client.tls import TLSConfig
from pytriton.client.url import TritonUrl

_HEALTH = "v2/health/ready"
# What decoding raises for a response that does not come from Triton.
_NOT_DECODED = (ValueError, KeyError, TypeError, AttributeError, IndexError)


def outputs_of(result: Any) -> list[tuple[str, str, Sequence[int]]]:
    """Lists the outputs of an ``InferResult``: name, datatype and shape."""
    return [(each["name"], each["datatype"], each["shape"]) for each in result.get_response().get("outputs", ())]


class HttpTransport:
    """A blocking connection to a server, which any number of threads may use.

    A tritonclient client works only in the thread that created it: its sockets belong to that thread's hub. So each
    thread has its own.

    Args:
        url: The server's URL.
        tls: TLS settings.
        given: An existing tritonclient client to use, which is left open.
    """

    def __init__(self, url: TritonUrl, tls: TLSConfig, given: Any = None) -> None:
        """Stores the arguments; connects on first use."""
        self.url = url
        self._tls = tls
        self._given = given
        self._threads = threading.local()
        self._gevent: Any = None
        self._waiting: set[_Waiting] = set()
        self._closed = False

    outputs_of = staticmethod(outputs_of)

    def other_protocol(self) -> PyTritonClientInferenceServerError | None:
        """See `Transport.other_protocol`."""
        return other_protocol(self.url)

    def load(self) -> None:
        """Imports tritonclient's client."""
        import gevent
        import tritonclient.http  # noqa: F401

        self._gevent = gevent

    def call(self, method: str, timeout_s: float, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of tritonclient's client; see `Transport.call`."""
        client = self._client()
        if client is self._given:
            return self._call(client, method, timeout_s, *args, **kwargs)
        client.calls += 1
        try:
            return self._call(client, method, timeout_s, *args, **kwargs)
        finally:
            client.calls -= 1
            if client.calls == 0 and getattr(self._threads, "client", None) is not client:
                # The garbage collector may do so in another thread, which would get a hub for it.
                with contextlib.suppress(Exception):
                    client.close()

    def _call(self, client: Any, method: str, timeout_s: float, *args: Any, **kwargs: Any) -> Any:
        gevent = self._gevent
        gevent_hub.THREADS.lookup_timeout_s = timeout_s
        timeout = gevent.Timeout.start_new(timeout_s)
        waiting = _Waiting(gevent)
        self._waiting.add(waiting)
        try:
            try:
                return self._send(client, method, *args, **kwargs)
            finally:  # before anything else that may wait
                timeout.close()
                waiting.end()
                self._waiting.discard(waiting)
        except _Closed:
            self._disconnect()
            raise failures.closed_meanwhile() from None
        except gevent.Timeout as expired:
            self._disconnect()
            if expired is not timeout:
                raise  # one of the program's own
            raise failures.timed_out(self.url.with_scheme, timeout_s) from None
        except PyTritonClientClosedError:
            raise
        except Exception as error:
            translated = _translated(self.url.with_scheme, error, timeout_s)
            if not failures.is_response(translated):
                self._disconnect()
            raise translated from error
        except BaseException:  # in the middle of a response, which the next request must not read
            self._disconnect()
            raise

    def close(self) -> None:
        """Closes the connections of all threads; calls that wait for a response end with an error."""
        self._closed = True
        for waiting in list(self._waiting):
            waiting.interrupt()
        if self._gevent is not None:
            gevent_hub.prepare_thread()  # closing needs a hub
        self._threads = threading.local()

    def _send(self, client: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if self._closed:
            raise failures.closed_meanwhile()
        result = getattr(client, method)(*args, **kwargs)
        if result is False and method == "is_server_ready":
            response = client._get(_HEALTH, kwargs.get("headers"), None)
            _check_not_restricted(response.status_code, response.read())
        return result

    def _client(self) -> Any:
        client = self._given or getattr(self._threads, "client", None)
        if client is None or self._gevent is None:
            self.load()
            gevent_hub.prepare_thread()
            if client is None:
                try:
                    client = self._threads.client = connect(self.url, self._tls)
                except (OSError, ValueError) as error:  # a file without a certificate
                    raise failures.unreachable(self.url.with_scheme, error) from error
                gevent_hub.close_with_thread(client)
        return client

    def _disconnect(self) -> None:
        self._threads.client = None


class _Closed(BaseException):
    """Raised in a waiting call when another thread closes its transport."""


class _Waiting:
    """A call of this thread that waits for a response."""

    def __init__(self, gevent: Any) -> None:
        self._greenlet = gevent.getcurrent()
        self._loop = gevent.get_hub().loop

    def interrupt(self) -> None:
        """Makes the call raise `_Closed`, from any thread."""
        with contextlib.suppress(ValueError):  # its thread has ended
            self._loop.run_callback_threadsafe(self._throw)

    def end(self) -> None:
        self._greenlet = None

    def _throw(self) -> None:
        if self._greenlet is not None:
            self._greenlet.throw(_Closed())


def connect(url: TritonUrl, tls: TLSConfig, network_timeout_s: float | None = None) -> Any:
    """Creates tritonclient's blocking client.

    Args:
        url: The server's URL.
        tls: TLS settings.
        network_timeout_s: How long connecting, and each wait for a part of a response, may take; None is for ever.
    """
    options: dict[str, Any] = {}
    if url.secure:
        import gevent.ssl

        context = _context(gevent.ssl.SSLContext, tls)
        options = {"ssl": True, "insecure": not tls.verify, "ssl_context_factory": lambda **_: context}
    return _client_class()(
        url.without_scheme,
        connection_timeout=network_timeout_s,
        network_timeout=network_timeout_s,
        **options,
    )


@functools.cache
def _client_class() -> Any:
    import tritonclient.http

    class Client(tritonclient.http.InferenceServerClient):  # type: ignore[misc]
        """A client that is not closed in a forked process, and counts the calls that are using it."""

        calls = 0

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._pid = os.getpid()
            super().__init__(*args, **kwargs)
            pool: Any = getattr(self._client_stub, "_connection_pool", None)
            if hasattr(pool, "_is_socket_alive"):
                pool._is_socket_alive = _is_open

        def __del__(self) -> None:
            if not fork_safety.keep_of_parent(self, self._pid):
                super().__del__()

    return Client


def _is_open(connection: Any) -> bool:
    """Returns whether a connection, which is idle, is still open.

    In place of geventhttpclient's own check, for which all file descriptors from 1,024 on are closed: each request of a
    process with so many files would open another connection.
    """
    if connection is None or connection.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


class AsyncioHttpTransport:
    """A pool of connections to a server for the tasks of an event loop.

    Args:
        url: The server's URL.
        tls: TLS settings.
        max_connections: The maximum number of connections; further requests wait for one.
    """

    def __init__(self, url: TritonUrl, tls: TLSConfig, max_connections: int) -> None:
        """Stores the arguments; connects on first use."""
        self.url = url
        self._tls = tls
        self._max_connections = max_connections
        self._client: Any = None
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    outputs_of = staticmethod(outputs_of)

    async def other_protocol(self) -> PyTritonClientInferenceServerError | None:
        """See `Transport.other_protocol`."""
        return await asyncio.to_thread(other_protocol, self.url)

    def load(self) -> None:
        """Imports tritonclient's client."""
        import tritonclient.http.aio  # noqa: F401

    async def call(self, method: str, timeout_s: float, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of tritonclient's client; see `Transport.call`."""
        # aiohttp would request compression, which takes the server longer than it saves.
        headers = {"Accept-Encoding": "identity", **kwargs.pop("headers", {})}
        try:
            return await asyncio.wait_for(self._send(method, *args, headers=headers, **kwargs), timeout_s)
        except asyncio.TimeoutError:
            raise failures.timed_out(self.url.with_scheme, timeout_s) from None
        except asyncio.CancelledError:  # aiohttp cancels connecting tasks when it is closed
            if self._closed and not is_being_cancelled():
                raise failures.closed_meanwhile() from None
            raise
        except Exception as error:
            if self._closed:
                raise failures.closed_meanwhile() from None
            raise _translated_of_aiohttp(self.url.with_scheme, error, timeout_s) from error

    async def close(self) -> None:
        """Closes all connections; calls that wait for a response end with an error."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.close()

    async def _send(self, method: str, *args: Any, headers: dict[str, str], **kwargs: Any) -> Any:
        client = self._connected()
        result = await getattr(client, method)(*args, headers=headers, **kwargs)
        if result is False and method == "is_server_ready":
            response = await client._get(_HEALTH, headers, None)
            _check_not_restricted(response.status, await response.read())
        return result

    def _connected(self) -> Any:
        if self._closed:
            raise failures.closed_meanwhile()
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            import tritonclient.http.aio

            self._loop = loop
            self._client = tritonclient.http.aio.InferenceServerClient(
                self.url.without_scheme,
                conn_limit=self._max_connections,
                conn_timeout=None,
                ssl=self.url.secure,
                ssl_context=_context(ssl.SSLContext, self._tls) if self.url.secure else False,
            )
        return self._client


def _context(context_class: type[ssl.SSLContext], tls: TLSConfig) -> ssl.SSLContext:
    # Not ssl.create_default_context: its sockets block, and gevent could not end a call that takes too long.
    context = context_class(ssl.PROTOCOL_TLS_CLIENT)
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


def _check_not_restricted(status: int, body: bytes) -> None:
    """Raises the error of a server that requires a token; tritonclient would report it as not ready."""
    from tritonclient.utils import InferenceServerException

    if status == http.HTTPStatus.FORBIDDEN:
        raise InferenceServerException(json.loads(body)["error"], str(status))


def _translated(url: str, error: Exception, timeout_s: float) -> Exception:
    from tritonclient.utils import InferenceServerException

    if isinstance(error, InferenceServerException):
        return failures.http_failure(url, error)
    if isinstance(error, TimeoutError):
        return failures.timed_out(url, timeout_s)
    if isinstance(error, http.client.HTTPException | ConnectionResetError | BrokenPipeError):
        return failures.lost(url, error)
    if isinstance(error, OSError):
        return failures.unreachable(url, error)
    if isinstance(error, _NOT_DECODED):
        return failures.malformed(url, error)
    return error


def _translated_of_aiohttp(url: str, error: Exception, timeout_s: float) -> Exception:
    import aiohttp

    if isinstance(error, aiohttp.ClientConnectorError):
        return failures.unreachable(url, error)
    if isinstance(error, aiohttp.ClientResponseError):
        return failures.malformed(url, error)
    if isinstance(error, aiohttp.ClientError):
        return failures.lost(url, error)
    return _translated(url, error, timeout_s)
