"""A server that another process has started, on this host."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence

from pytriton.constants import DEFAULT_TRITON_STARTUP_TIMEOUT_S
from pytriton.exceptions import PyTritonInvalidOperationError, PyTritonRuntimeError
from pytriton.server.control import address_of_url, control_of_url
from pytriton.server.state import ServerState
from pytriton.server.version import ServerVersion

LOGGER = logging.getLogger(__name__)

_READY_POLL_S = 0.1
_SILENT_S = 5.0  # without a server, before the wait is logged
_LIVE_S = 1.0  # after which a live server suffices: its owner may not have called run() yet
_RETURN_TIMEOUT_S = 60.0  # for a server that has exited to come back
_NOTICED_S = 0.5  # from a failed request to the end of the other connections


class RemoteServer:
    """A server that another process has started, on this host.

    Args:
        url: Where it is.
        access_token: Its token, for the endpoints that require it.

    Raises:
        PyTritonBadParameterError: The URL is invalid.
    """

    is_restarted = True
    """The process that started the server restarts it when it exits unexpectedly."""

    def __init__(self, url: str, access_token: str | None) -> None:
        """Checks the URL; does not connect yet."""
        self._url = url
        self._address = address_of_url(url)
        self.control = control_of_url(url, access_token)
        self._state = ServerState.STARTING
        self._stopping, self._stopped = socket.socketpair()
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._refusal: OSError | None = None  # of the last attempt to connect
        self._failure: Exception | None = None
        self._version: ServerVersion | None = None

    def start(self, bound: Sequence[str] | None = None) -> None:
        """Does nothing: the server is running already."""

    @property
    def version(self) -> ServerVersion | None:
        """The server's version; None if it has not been ready yet."""
        return self._version

    @property
    def state(self) -> ServerState:
        """The server's state."""
        return self._state

    def is_alive(self) -> bool:
        """Returns whether the server responds."""
        return self.control.is_live()

    def wait_until_ready(self) -> None:
        """Waits until it is ready, or has been live for a while: then models can be loaded.

        Raises:
            PyTritonRuntimeError: It takes too long.
        """
        self._wait_until_ready(DEFAULT_TRITON_STARTUP_TIMEOUT_S)

    def _wait_until_ready(self, timeout_s: float) -> None:
        started = time.monotonic()
        live_since: float | None = None
        is_logged = False
        while True:
            # Connect first, so that an exit after the check is noticed.
            self._connect()
            if self.control.is_ready():
                break
            now = time.monotonic()
            live_since = (live_since or now) if self.control.is_live() else None
            if live_since is not None and now - live_since > _LIVE_S:
                break
            if now > started + timeout_s:
                raise PyTritonRuntimeError(
                    f"The server at {self._url} is not ready after {timeout_s:g} s: {self._problem()}. Check the "
                    "address, and that the server runs."
                )
            if not is_logged and now > started + _SILENT_S:
                is_logged = True
                LOGGER.warning("Waiting for the server at %s: %s.", self._url, self._problem())
            if self._is_abandoned(_READY_POLL_S):
                raise PyTritonRuntimeError(f"Waiting for the server at {self._url} was cancelled.")
        self._version = self.control.version()
        self._state = ServerState.READY

    def wait_for_end(self) -> bool:
        """Waits until the server exits.

        Returns:
            Whether it exited unexpectedly.
        """
        while not self._is_abandoned(0):
            connection = self._connection
            if connection is None:
                if not self.control.is_live():
                    break
                self._connect()
                continue
            ready, _, _ = select.select([connection, self._stopped], [], [])
            # The server also closes connections that have been idle for long.
            if connection in ready:
                self._disconnect()
        if self._is_abandoned(0):
            return False
        self._state = ServerState.RESTARTING
        return True

    def notice_end(self) -> bool:
        """Checks, after a request to the server failed, whether it has exited."""
        if self.control.is_live():
            return False
        self._state = ServerState.RESTARTING
        return True

    def restart(self, deploy: Callable[[], Sequence[str]]) -> bool:
        """Waits until the server is back, and deploys the models to it.

        Args:
            deploy: Uploads the bound models.

        Returns:
            Whether it is ready; False if `abandon` was called.

        Raises:
            PyTritonRuntimeError: It does not come back.
            PyTritonInvalidOperationError: It refuses a model.
        """
        LOGGER.error("The server at %s has ended; waiting for it to come back.", self._url)
        try:
            while True:
                self._wait_until_ready(_RETURN_TIMEOUT_S)
                try:
                    deploy()
                    break
                except (PyTritonInvalidOperationError, PyTritonRuntimeError):
                    if self._is_abandoned(0) or not self._has_ended():
                        raise
                self._state = ServerState.RESTARTING  # it has exited again
        except Exception as error:
            self._state, self._failure = ServerState.FAILED, error
            if self._is_abandoned(0):
                return False
            raise
        LOGGER.warning("The server at %s is back, and has the models of this process again.", self._url)
        return True

    def abandon(self) -> None:
        """Ends `restart` and `wait_for_end` early."""
        with contextlib.suppress(OSError):
            self._stopping.shutdown(socket.SHUT_RDWR)

    def open_gate(self) -> None:
        """Does nothing: that is up to the process that started the server."""

    def set_hanging(self, model: str, hangs: bool) -> None:
        """Does nothing: only the process that started the server can mark a model as not ready."""

    def set_failing(self, model: str, fails: bool) -> None:
        """Does nothing, like `set_hanging`."""

    def drain(self) -> None:
        """Does nothing: the server continues to run."""

    def refuse(self) -> None:
        """Does nothing: the server continues to run."""

    def repository_models(self) -> list[str]:
        """Returns an empty list: the process that started the server loads its repository."""
        return []

    def load_repository(self) -> None:
        """Does nothing: the process that started the server loads its repository."""

    def prepare_to_stop(self, timeout_s: float) -> None:
        """Does nothing: the server continues to run."""

    def stop(self) -> None:
        """Closes the connection to the server, which continues to run."""
        self._state = ServerState.STOPPED
        self.abandon()
        self._disconnect()

    def urls(self) -> list[str]:
        """Returns the server's URL, in full."""
        scheme = self._url.partition("://")[0] if "://" in self._url else "http"
        host, port = self._address
        return [f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"]

    @property
    def metrics_url(self) -> str | None:
        """Always None: the port of the metrics is unknown."""
        return None

    def exit_report(self) -> str:
        """Reports that the server does not respond."""
        if self._failure is not None:
            return f"The server at {self._url} had ended, and cannot be used again: {self._failure}"
        return f"The server at {self._url} no longer responds."

    def _problem(self) -> str:
        if self._refusal is not None:
            return f"no connection ({self._refusal})"
        return "it responds, but is not ready" if self.control.is_live() else "what listens there is no live Triton"

    def _connect(self) -> None:
        """Opens an idle connection, which closes when the server exits."""
        self._disconnect()
        self._refusal = None
        try:
            self._connection = socket.create_connection(self._address, timeout=DEFAULT_TRITON_STARTUP_TIMEOUT_S)
        except OSError as error:
            self._refusal = error

    def _disconnect(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _has_ended(self) -> bool:
        connection = self._connection
        return connection is None or bool(select.select([connection], [], [], _NOTICED_S)[0])

    def _is_abandoned(self, timeout_s: float) -> bool:
        return bool(select.select([self._stopped], [], [], timeout_s)[0])
