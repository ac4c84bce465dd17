"""TLS handshakes, which count as connections and are limited in time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sized

from pytriton.gateway.certificate import Certificate
from pytriton.gateway.config import GatewayConfig
from pytriton.utils.limits import has_spare_files


class Handshakes(asyncio.Protocol):
    """Accepts all connections of a port, and passes them on to protocols of their own after the handshake.

    An event loop with TLS of its own would not tell of a connection before the end of its handshake.

    Args:
        certificate: The certificate.
        limits: The limits on connections and on the time of a handshake.
        connections: Connections after the handshake, which count, too.
        protocol: Creates the protocol of a connection.
    """

    def __init__(
        self,
        certificate: Certificate,
        limits: GatewayConfig,
        connections: Sized,
        protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        self._certificate = certificate
        self._limits = limits
        self._connections = connections
        self._protocol = protocol
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins the handshake of a connection, or closes it if there are too many."""
        if len(self._tasks) + len(self._connections) < self._limits.max_connections:
            with contextlib.suppress(OSError):  # there is no descriptor left
                self._begin(transport.get_extra_info("socket").dup())  # from which nothing has been read yet
        transport.abort()

    def _begin(self, connection: socket.socket) -> None:
        if not has_spare_files(connection.fileno()):
            connection.close()
            return
        task = asyncio.get_running_loop().create_task(self._shake_hands(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Closes the connections whose handshakes are not complete."""
        for task in self._tasks:
            task.cancel()

    async def _shake_hands(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # a client that does not speak TLS, is too slow, or has disconnected
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol,
                connection,
                ssl=self._certificate.context(),
                ssl_handshake_timeout=self._limits.read_timeout_s,
            )
