"""A client's servers, and the choice among them."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from pytriton.client.core import fork_safety
from pytriton.client.core.shared_memory import RegionPool
from pytriton.client.exceptions import PyTritonClientValueError
from pytriton.client.url import TritonUrl
from pytriton.utils.back_off import BackOff

_ABSENCE = BackOff(first_s=0.5, max_s=10.0)


class Transport(Protocol):
    """A transport to one server; see `http.transport` and `grpc.transport`."""

    url: TritonUrl

    def call(self, method: str, timeout_s: float, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of Triton's API; in asyncio, returns an awaitable.

        Args:
            method: Its name, as tritonclient has it.
            timeout_s: How long it may take, including connecting.
            args: Positional arguments.
            kwargs: Named arguments.

        Raises:
            PyTritonClientTimeoutError: It took longer.
            PyTritonClientInferenceServerError: The server failed or cannot be reached, the connection broke, or the
                response does not come from Triton.
            PyTritonClientValueError: The arguments cannot be sent.
            PyTritonClientClosedError: The transport was closed before or meanwhile.
        """

    def other_protocol(self) -> Any:
        """Returns the error to raise if the port speaks another protocol, or None; in asyncio, an awaitable."""

    def load(self) -> None:
        """Imports the required libraries, which takes a moment."""

    def close(self) -> Any:
        """Closes the connections; in asyncio, returns an awaitable."""


class Server:
    """One of a client's servers.

    Args:
        transport: The transport to it.
        headers: Headers of every request.
        shared_memory: Whether tensors go through shared memory.

    Attributes:
        users: How many requests are using it, if servers come and go; its set counts them.
        is_gone: Whether it has left its set, so that it gets no further request.
        is_silent: Whether it did not respond in time to the last check that found it not ready.
    """

    def __init__(self, transport: Any, headers: Mapping[str, str], shared_memory: bool = False) -> None:
        """Assumes that the server is ready."""
        self.transport: Transport = transport
        self.url = transport.url.with_scheme
        self.regions = RegionPool() if shared_memory else None
        self._headers = headers
        self.users = 0
        self.is_gone = False
        self.is_silent = False
        self._absences = 0
        self._absent_until = 0.0
        fork_safety.keep_in_children(self)

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Returns the headers of a request, which take precedence over the client's."""
        if headers and self.transport.url.protocol == "grpc":
            headers = {name.lower(): value for name, value in headers.items()}
            for name in headers:
                if name.endswith("-bin"):
                    raise PyTritonClientValueError(
                        f"Header {name!r} would be binary in gRPC, which is not supported; use a name without '-bin'."
                    )
        return {**self._headers, **headers}

    def call(
        self, method: str, timeout_s: float, *args: Any, headers: Mapping[str, str] | None = None, **kwargs: Any
    ) -> Callable[[], Any]:
        """Returns a step that calls a method of Triton's API.

        Args:
            method: Its name.
            timeout_s: How long it may take.
            args: Positional arguments.
            headers: The user's headers.
            kwargs: Other named arguments.
        """
        return functools.partial(
            self.transport.call, method, timeout_s, *args, headers=self.headers(headers or {}), **kwargs
        )

    def mark_down(self, *, is_silent: bool = False) -> None:
        """Marks the server as not ready; it is avoided for longer each consecutive time."""
        self.is_silent = is_silent
        self._absences += 1
        self._absent_until = time.monotonic() + _ABSENCE.pause_s(self._absences)

    def mark_up(self) -> None:
        """Marks the server as ready."""
        self.is_silent = False
        self._absences = 0

    @property
    def was_left_out(self) -> bool:
        """Whether the last check found it not ready."""
        return self._absences > 0

    @property
    def is_left_out(self) -> bool:
        """Whether requests should avoid it for now."""
        return self._absences > 0 and time.monotonic() < self._absent_until


class Balancer:
    """Chooses servers in turn, and avoids those that are down.

    Args:
        servers: At least one.
    """

    def __init__(self, servers: Sequence[Server]) -> None:
        """Starts with the first server."""
        self.servers = servers
        self._turns = itertools.count()

    def candidates(self) -> Iterator[Server]:
        """Yields the servers for one request, the best first; each once, those marked as down last."""
        if len(self.servers) == 1:
            yield self.servers[0]
            return
        yield from in_turn(self.servers, next(self._turns))


def in_turn(servers: Sequence[Server], turn: int) -> list[Server]:
    """Returns servers in the order for one request, those marked as down last.

    Args:
        servers: The servers.
        turn: The number of the request.
    """
    first = turn % len(servers) if servers else 0
    return sorted([*servers[first:], *servers[:first]], key=lambda server: server.is_left_out)
