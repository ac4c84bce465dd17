"""The socket on which the server opens the controller's own service channel, for clients in its process."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import socket
import threading

from pytriton.exceptions import PyTritonInvalidOperationError
from pytriton.proxy.services.client import ServerClient
from pytriton.proxy.transport.socket_path import check_socket_path

LOGGER = logging.getLogger(__name__)


class ServiceListener:
    """Listens for the server, and holds the client of its newest channel. Its creator calls `accept`.

    Args:
        path: The path of the socket, in a folder of mode 0700.

    Raises:
        PyTritonBadParameterError: The path is too long for a socket.
        OSError: The socket cannot be created there.
    """

    def __init__(self, path: pathlib.Path) -> None:
        check_socket_path(path)
        self.path = path
        """The path of the socket."""
        self._changed = threading.Condition()
        self._client: ServerClient | None = None
        self._closed = False
        path.unlink(missing_ok=True)  # left behind by a killed process
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(str(path))
        self._socket.listen()

    def fileno(self) -> int:
        """Returns the socket's descriptor, which is readable when the server is connecting."""
        return self._socket.fileno()

    def accept(self) -> None:
        """Accepts the server's channel, which replaces that of a server before it."""
        try:
            connected, _ = self._socket.accept()
        except OSError as error:
            LOGGER.warning("The server's channel for clients in this process cannot be accepted: %s", error)
            return
        client = ServerClient(connected.detach(), of_instance=False)
        with self._changed:
            previous, self._client = self._client, client
            self._changed.notify_all()
        if previous is not None:
            previous.close()

    def client(self) -> ServerClient | None:
        """Returns the client of the channel; None while there is none."""
        client = self._client
        return None if client is None or client.closed else client

    def wait_for_client(self, timeout_s: float) -> ServerClient:
        """Waits until there is a channel.

        Raises:
            PyTritonInvalidOperationError: There is none in time, or the server is stopped.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self.client() is not None, timeout_s)
            client = self.client()
        if client is None or self._closed:
            raise PyTritonInvalidOperationError("The server is not running, or has loaded none of the bound models.")
        return client

    def close(self) -> None:
        """Closes the socket and the channel; calls in flight fail."""
        with self._changed:
            self._closed = True
            client, self._client = self._client, None
            self._changed.notify_all()
        if client is not None:
            client.close()
        self._socket.close()
        with contextlib.suppress(OSError):
            self.path.unlink()
