"""The transport over HTTP in asyncio."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from pytriton.client.core import failures
from pytriton.client.core.connecting import ConnectOptions
from pytriton.client.core.http import api, messages
from pytriton.client.core.http.asyncio_connection import AsyncioConnection
from pytriton.client.core.http.connection import ConnectError, LostError, late
from pytriton.client.core.http.transport import context_of, translated
from pytriton.client.core.port_probe import other_protocol
from pytriton.client.core.tensors import Content
from pytriton.client.exceptions import PyTritonClientInferenceServerError
from pytriton.client.url import TritonUrl

_NO_HEADERS: Mapping[str, str] = {}
_NEXT_ADDRESS_S = 0.25  # after which the next address of a host name is tried in parallel


class AsyncioHttpTransport:
    """Connections to a server for the tasks of an event loop: one for each request in flight.

    Args:
        url: The server's URL.
        options: How to connect.
        max_connections: The maximum number of connections; further requests wait for one.
    """

    def __init__(self, url: TritonUrl, options: ConnectOptions, max_connections: int) -> None:
        """Stores the arguments; connects on first use."""
        self.url = url
        self._context = functools.cache(functools.partial(context_of, options.tls)) if url.secure else None
        self._connect_timeout_s = options.timeout_s
        self._head = messages.RequestHead(url)
        self._max_connections = max_connections
        self._pool: _Pool | None = None
        self._closed = False

    async def other_protocol(self) -> PyTritonClientInferenceServerError | None:
        """See `Transport.other_protocol`."""
        return await asyncio.to_thread(other_protocol, self.url)

    def load(self) -> None:
        """Imports the parser of responses."""
        import httptools  # noqa: F401

    async def call(
        self, method: str, timeout_s: float, *args: Any, headers: Mapping[str, str] = _NO_HEADERS, **kwargs: Any
    ) -> Any:
        """Calls a method of the API; see `Transport.call`."""
        call = api.call_of(method, *args, **kwargs)
        parts = (self._head.of(call, headers, sum(map(len, call.parts))), *call.parts)
        if self._closed:
            raise failures.closed_meanwhile()
        pool = self._current_pool()
        limit = _Limit(timeout_s)
        pool.waiting.add(limit)
        try:
            response = await self._exchange(pool, parts, timeout_s, is_repeatable=call.verb == "GET")
            return call.read(response.to(headers))
        except asyncio.CancelledError:
            if not limit.has_cancelled():
                raise
            if self._closed:
                raise failures.closed_meanwhile() from None
            raise failures.timed_out(self.url.with_scheme, timeout_s) from None
        except Exception as error:
            if self._closed:
                raise failures.closed_meanwhile() from None
            raise translated(self.url.with_scheme, error, timeout_s) from error.__cause__
        finally:
            limit.end()
            pool.waiting.discard(limit)

    async def close(self) -> None:
        """Closes all connections; calls that wait for a response end with an error."""
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is None or pool.loop is not asyncio.get_running_loop():
            return
        for waiting in list(pool.waiting):
            waiting.cancel()
        while pool.idle:
            pool.idle.pop().abort()
        await asyncio.sleep(0)  # lets the loop close them

    def _current_pool(self) -> _Pool:
        loop = asyncio.get_running_loop()
        if self._pool is None or self._pool.loop is not loop:
            self._pool = _Pool(loop, self._max_connections)
        return self._pool

    async def _exchange(
        self, pool: _Pool, parts: Sequence[Content], timeout_s: float, *, is_repeatable: bool
    ) -> api.Response:
        """Sends a request and receives the response.

        A connection may break while it is idle. If that is noticed too late, a read-only request is resent.
        """
        async with pool.room:
            connection = pool.take()
            if connection is not None:
                try:
                    return await self._exchange_over(connection, pool, parts)
                except LostError as error:
                    if error.has_begun or not is_repeatable:
                        raise
            return await self._exchange_over(await self._connect(pool.loop, timeout_s), pool, parts)

    async def _exchange_over(
        self, connection: AsyncioConnection, pool: _Pool, parts: Sequence[Content]
    ) -> api.Response:
        is_reusable = False
        try:
            response, is_reusable = await connection.exchange(parts)
        finally:
            if is_reusable and not self._closed:
                pool.idle.append(connection)
            else:
                connection.abort()
        return response

    async def _connect(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> AsyncioConnection:
        connection = AsyncioConnection()
        options: dict[str, Any] = {}
        try:
            if isinstance(loop, asyncio.BaseEventLoop):  # other loops do not have this option
                options["happy_eyeballs_delay"] = _NEXT_ADDRESS_S
            if self._context is not None:
                options |= {"ssl": self._context(), "ssl_handshake_timeout": timeout_s + 1}
            creating = loop.create_connection(lambda: connection, self.url.hostname, self.url.port, **options)
            await asyncio.wait_for(creating, min(self._connect_timeout_s, timeout_s + 1))  # the latter never passes
        except (TimeoutError, asyncio.TimeoutError) as error:  # which is the same since Python 3.11
            connection.abort()
            raise late(self._connect_timeout_s) from error
        except (OSError, ValueError) as error:  # such as a file without a certificate
            connection.abort()
            raise ConnectError(str(error) or type(error).__name__) from error
        except BaseException:
            connection.abort()
            raise
        return connection


class _Pool:
    """The connections of an event loop.

    Args:
        loop: The loop.
        max_connections: How many there may be.

    Attributes:
        idle: Those that wait for a request.
        room: Limits the requests to the number of connections.
        waiting: The limits of the calls that are waiting for a response, a connection, or room.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, max_connections: int) -> None:
        self.loop = loop
        self.idle: list[AsyncioConnection] = []
        self.room = asyncio.Semaphore(max_connections)
        self.waiting: set[_Limit] = set()

    def take(self) -> AsyncioConnection | None:
        """Takes the most recently used connection, and closes those that broke meanwhile."""
        while self.idle:
            connection = self.idle.pop()
            if connection.is_alive():
                return connection
            connection.abort()
        return None


class _Limit:
    """Cancels the running task after a timeout or on request.

    Args:
        timeout_s: The timeout.
    """

    def __init__(self, timeout_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[Any] = task
        self._is_over = self._has_cancelled = False
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self.cancel)

    def cancel(self) -> None:
        """Cancels the task."""
        if not self._has_cancelled and not self._is_over:
            self._has_cancelled = True
            self._task.cancel()

    def has_cancelled(self) -> bool:
        """Returns whether this object alone cancelled the task, and revokes the cancellation."""
        if not self._has_cancelled:
            return False
        uncancel = getattr(self._task, "uncancel", None)  # not before Python 3.11
        return uncancel is None or uncancel() == 0

    def end(self) -> None:
        """Prevents cancellation from now on."""
        self._is_over = True
        self._timer.cancel()
