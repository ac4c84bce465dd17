"""A client's set of servers: fixed, or following a function that returns their addresses."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import itertools
import logging
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from pytriton.client.core.background import InBackground
from pytriton.client.core.failures import closed_meanwhile, server_error
from pytriton.client.core.sansio import Sleep, Steps
from pytriton.client.core.servers import Balancer, Server, in_turn
from pytriton.client.exceptions import (
    Failure,
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientInvalidUrlError,
    PyTritonClientValueError,
)
from pytriton.client.url import TritonUrl

LOGGER = logging.getLogger(__name__)


class ServerSet:
    """The fixed servers of a client.

    Args:
        servers: At least one.

    Attributes:
        present: The servers.
    """

    changes = False
    """Whether servers come and go."""

    def __init__(self, servers: Sequence[Server]) -> None:
        """Starts with the first server."""
        self.present = servers
        self._balancer = Balancer(servers)

    def look(self) -> Sequence[Server]:
        """Returns the current servers."""
        return self.present

    def candidates(self, key: object = None) -> Iterator[Server]:
        """Yields the servers for one request, the best first; each once, those marked as down last.

        Args:
            key: Identifies requests that must go to the same server, such as the id of a sequence: only that server is
                yielded.
        """
        if key is None:
            return self._balancer.candidates()
        return iter([server_of(self.present, key)])

    def hold(self, server: Server) -> bool:
        """Keeps a server's connections open until it is released; returns whether it still belongs to the set."""
        return True

    def keep(self, server: Server) -> None:
        """Holds a server that is held already a second time, even if it has left the set."""

    def release(self, server: Server) -> None:
        """Undoes one `hold` or `keep`."""

    def end(self) -> Sequence[Server]:
        """Returns the servers whose connections the caller must close; afterwards, none is added."""
        return self.present

    def described(self) -> str:
        """Names the servers, for messages."""
        return ", ".join(server.url for server in self.present)

    def no_address(self) -> PyTritonClientInferenceServerError:
        """Returns the error of a client that has no server."""
        return server_error("The client has no server.", Failure.UNREACHABLE)

    def none_ready(self, model: str) -> PyTritonClientInferenceServerError:
        """Returns the error of a request that no server accepts."""
        if not self.present:
            return self.no_address()
        return server_error(f"None of the servers at {self.described()} has {model!r} ready.", Failure.UNREACHABLE)


class ChangingServerSet(ServerSet):
    """The servers of a client that come and go.

    Servers that stay keep their connections; those that left are disconnected once nothing uses them any more.

    Args:
        addresses: Returns the URLs of the current servers; called before each attempt to send a request.
        server_at: Creates the server at a URL.
        sleep: How to pause, in seconds.
        in_background: Runs the steps that disconnect from a server.
    """

    changes = True

    def __init__(
        self,
        addresses: Callable[[], Sequence[str]],
        server_at: Callable[[TritonUrl], Server],
        sleep: Sleep,
        in_background: InBackground,
    ) -> None:
        """Does not call the function yet."""
        super().__init__([])
        self._addresses = addresses
        self._server_at = server_at
        self._sleep = sleep
        self._in_background = in_background
        self._urls: list[str] = []  # of the current servers, as the function returned them
        self._turns = itertools.count()
        self._numbers = itertools.count(1)
        self._newest = 0  # the number of the latest call whose result is in effect
        self._gone: set[Server] = set()  # left the set, but still in use
        self._is_failing = False
        self._is_closed = False
        self._lock = threading.RLock()  # reentrant: streams release their server when they are deleted, at any point

    def look(self) -> Sequence[Server]:
        """Returns the servers as they are now.

        Raises:
            PyTritonClientInferenceServerError: The function failed, and no server is known.
            PyTritonClientValueError: It does not return a list of URLs, or one of them cannot work.
            PyTritonClientClosedError: The client was closed.
        """
        number = next(self._numbers)
        try:
            urls = self._addresses()
        except Exception as error:
            self._note_failure(error)
            return self.present
        self._is_failing = False
        if type(urls) is not list:
            urls = self._checked(urls)
        if urls != self._urls:
            self._update(list(urls), number)
        else:
            with self._lock:
                self._newest = max(number, self._newest)
        return self.present

    def candidates(self, key: object = None) -> Iterator[Server]:
        """Yields the servers for one request; calls the function before each."""
        turn = next(self._turns)
        tried: set[TritonUrl] = set()
        while True:
            servers = self.look()
            in_order = in_turn(servers, turn) if key is None else [server_of(servers, key)] if servers else []
            untried = [server for server in in_order if server.transport.url not in tried]
            if not untried:
                return
            tried.add(untried[0].transport.url)
            yield untried[0]

    def hold(self, server: Server) -> bool:
        """Keeps a server's connections open until it is released; returns whether it still belongs to the set."""
        with self._lock:
            if server.is_gone:
                return False
            server.users += 1
            return True

    def keep(self, server: Server) -> None:
        """Holds a server that is held already a second time, even if it has left the set."""
        with self._lock:
            server.users += 1

    def release(self, server: Server) -> None:
        """Undoes one `hold` or `keep`; the last one disconnects from a server that has left the set."""
        with self._lock:
            server.users -= 1
            if server.users or server not in self._gone:
                return
            self._gone.discard(server)
        self._let_go(server)

    def end(self) -> Sequence[Server]:
        """Returns the servers whose connections the caller must close; afterwards, none is added."""
        with self._lock:
            self._is_closed = True
            self.present = [*self.present, *self._gone]
            self._gone.clear()
            return self.present

    def described(self) -> str:
        """Names the servers, for messages."""
        urls = super().described()
        return f"the servers of {name_of(self._addresses)}{f', {urls}' if urls else ''}"

    def no_address(self) -> PyTritonClientInferenceServerError:
        """Returns the error of a client that has no server at present."""
        return server_error(
            f"{name_of(self._addresses)}, which the client was given as its url, returns no address at present: no "
            "server is ready, or none is left.",
            Failure.UNREACHABLE,
        )

    def _note_failure(self, error: Exception) -> None:
        name = name_of(self._addresses)
        if not self.present:
            raise server_error(
                f"{name}, which the client was given as its url, failed, and no server is known: {error!r}.",
                Failure.UNREACHABLE,
            ) from error
        if not self._is_failing:
            LOGGER.warning("%s failed; requests go to the servers that it returned before.", name, exc_info=error)
        self._is_failing = True

    def _checked(self, urls: Any) -> list[str]:
        if isinstance(urls, Sequence) and not isinstance(urls, str | bytes):
            return list(urls)
        if inspect.iscoroutine(urls):
            urls.close()  # otherwise Python warns that it was never awaited
        raise PyTritonClientValueError(
            f"{name_of(self._addresses)}, which the client was given as its url, returned {urls!r}; let it return a "
            "list of URLs, at once."
        )

    def _update(self, urls: list[str], number: int) -> None:
        """Adds new servers, and removes those that have left.

        Args:
            urls: The URLs of all servers.
            number: The number of the call: the result of a later one, by another thread, takes precedence.
        """
        wanted = dict.fromkeys(map(self._parsed, urls))
        with self._lock:
            if self._is_closed:
                raise closed_meanwhile()
            if number < self._newest:
                return
            known = {server.transport.url: server for server in (*self._gone, *self.present)}
            servers = [known[url] if url in known else self._server_at(url) for url in wanted]
            leaving = [server for server in self.present if server.transport.url not in wanted]
            for server in servers:
                server.is_gone = False
                self._gone.discard(server)
            for server in leaving:
                server.is_gone = True
            idle = [server for server in leaving if not server.users]
            self._gone.update(server for server in leaving if server.users)
            self.present, self._urls, self._newest = servers, urls, number
        for server in idle:
            self._let_go(server)

    def _parsed(self, url: str) -> TritonUrl:
        try:
            return TritonUrl.from_url(url)
        except PyTritonClientInvalidUrlError as error:
            raise PyTritonClientInvalidUrlError(
                f"{name_of(self._addresses)}, which the client was given as its url: {error.message}"
            ) from error

    def _let_go(self, server: Server) -> None:
        if not self._is_closed:
            self._in_background(self._farewell(server))

    def _farewell(self, server: Server) -> Steps[None]:
        if server.regions is not None:
            with contextlib.suppress(PyTritonClientError):
                yield from server.regions.close(server, self._sleep)
        yield server.transport.close


def server_of(servers: Sequence[Server], key: object) -> Server:
    """Returns the server for a key: when one comes or goes, few keys move (rendezvous hashing).

    Args:
        servers: At least one.
        key: The key, compared by its text.
    """

    def weight(server: Server) -> bytes:
        return hashlib.blake2b(f"{server.url} {key}".encode(), digest_size=8).digest()

    return max(servers, key=weight)


def name_of(function: Callable[..., Any]) -> str:
    """Names a function for messages, such as ``Pool.urls()``."""
    inner: Hashable = getattr(function, "func", function)  # that of a functools.partial
    return f"{getattr(inner, '__qualname__', type(inner).__qualname__)}()"
