"""Listens for the server, which opens the controller's own service channel for clients in this process."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import threading
import time

from pytriton.exceptions import PyTritonInvalidOperationError
from pytriton.proxy.services.client import ServerClient
from pytriton.proxy.services.metric_sender import SENDER
from pytriton.proxy.transport.unix_socket import listen_at

LOGGER = logging.getLogger(__name__)

_PAUSE_S = 0.05  # before the next attempt to accept a connection


class ServiceListener:
    """Listens for the server, and holds the client of its newest channel. Its creator calls `accept`.

    Args:
        path: The path of the socket, in a folder of mode 0700.

    Raises:
        PyTritonBadParameterError: The path is too long for a socket.
        OSError: The socket cannot be created there.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        """The path of the socket."""
        self._changed = threading.Condition()
        self._client: ServerClient | None = None
        self._closed = False
        self._socket = listen_at(path)

    def fileno(self) -> int:
        """Returns the socket's descriptor, which is readable when the server is connecting."""
        return self._socket.fileno()

    def accept(self) -> None:
        """Accepts the server's channel, which replaces that of an earlier server."""
        try:
            connected, _ = self._socket.accept()
        except OSError as error:  # mostly: too many open files
            LOGGER.warning("The server's channel for clients in this process cannot be accepted: %s", error)
            time.sleep(_PAUSE_S)
            return
        client = ServerClient(connected.detach(), of_instance=False)
        with self._changed:
            previous, self._client = self._client, client
            self._changed.notify_all()
        if previous is not None:
            SENDER.detach(previous)
            previous.close()
        SENDER.attach(client)

    def client(self, timeout_s: float) -> ServerClient:
        """Returns the client of the channel; waits while there is none.

        Raises:
            PyTritonInvalidOperationError: There is none in time, or the server was stopped.
        """
        client = self._client
        if client is not None and not client.closed:
            return client
        with self._changed:
            self._changed.wait_for(self._is_settled, timeout_s)
            client = self._client
        if client is None or client.closed:
            raise PyTritonInvalidOperationError("The server is not running, or has loaded none of the bound models.")
        return client

    def _is_settled(self) -> bool:
        return self._closed or (self._client is not None and not self._client.closed)

    def close(self) -> None:
        """Closes the socket and the channel; calls in flight fail."""
        with self._changed:
            self._closed = True
            client, self._client = self._client, None
            self._changed.notify_all()
        if client is not None:
            SENDER.detach(client)
            client.close()
        self._socket.close()
        with contextlib.suppress(OSError):
            self.path.unlink()
