"""A server that another process has started, on this host."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pytriton.constants import DEFAULT_TRITON_STARTUP_TIMEOUT_S
from pytriton.exceptions import PyTritonRuntimeError
from pytriton.server.control import control_of_url
from pytriton.server.state import ServerState

_READY_POLL_S = 0.1


class RemoteServer:
    """A server that another process has started, on this host.

    Args:
        url: Where it is.
        access_token: Its token, for the endpoints that require it.

    Raises:
        PyTritonBadParameterError: The URL is none.
    """

    def __init__(self, url: str, access_token: str | None) -> None:
        """Checks the URL; does not connect yet."""
        self._url = url
        self.control = control_of_url(url, access_token)
        self._state = ServerState.STARTING

    def start(self, bound: Sequence[str] | None = None) -> None:
        """Does nothing: the server is running already."""

    @property
    def state(self) -> ServerState:
        """The server's state."""
        if self._state is ServerState.READY and not self.is_alive():
            return ServerState.FAILED
        return self._state

    def is_alive(self) -> bool:
        """Returns whether the server responds."""
        return self.control.is_ready()

    def wait_until_ready(self) -> None:
        """Waits until it takes requests.

        Raises:
            PyTritonRuntimeError: It takes too long.
        """
        deadline = time.monotonic() + DEFAULT_TRITON_STARTUP_TIMEOUT_S
        while not self.control.is_ready():
            if time.monotonic() > deadline:
                raise PyTritonRuntimeError(
                    f"The server at {self._url} is not ready after {DEFAULT_TRITON_STARTUP_TIMEOUT_S} s."
                )
            time.sleep(_READY_POLL_S)
        self._state = ServerState.READY

    def load_repository(self) -> None:
        """Does nothing: the process that started the server loads its repository."""

    def prepare_to_stop(self, timeout_s: float) -> None:
        """Does nothing: the server continues to run."""

    def stop(self) -> None:
        """Does nothing: the server continues to run."""

    def exit_report(self) -> str:
        """Says that the server does not respond."""
        return f"The server at {self._url} no longer responds."
