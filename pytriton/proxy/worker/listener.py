"""Listens for model instances, each of which connects with a ticket for one of the process's workers."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import socket
import threading
import time
from collections.abc import Callable, Collection

from pytriton.proxy.cuda.driver import visible_gpus
from pytriton.proxy.services.client import ServerClient
from pytriton.proxy.transport.channel import Channel
from pytriton.proxy.transport.doorbell import DOORBELL_SIZE
from pytriton.proxy.transport.unix_socket import listen_at
from pytriton.proxy.wire.notification import NotificationKind
from pytriton.proxy.wire.registration import AdmissionMessage
from pytriton.proxy.worker.worker import Worker

LOGGER = logging.getLogger(__name__)

_PAUSE_S = 0.05  # before the next attempt to accept an instance


class WorkerListener:
    """Listens for model instances. Its creator calls `accept` when it is readable.

    Args:
        path: The path of the socket, in a folder of mode 0700.
        on_client: Called with the client of each instance's service channel.

    Raises:
        PyTritonBadParameterError: The path is too long for a socket.
        OSError: The socket cannot be created there.
    """

    def __init__(self, path: pathlib.Path, on_client: Callable[[ServerClient], None] | None = None) -> None:
        self._path = path
        self._on_client = on_client
        self._tickets: dict[int, Worker] = {}
        self._lock = threading.Lock()
        self._socket = listen_at(path)

    def fileno(self) -> int:
        """Returns the socket's descriptor, which is readable when an instance is connecting."""
        return self._socket.fileno()

    def issue_ticket(self, worker: Worker) -> AdmissionMessage:
        """Issues a ticket with which one model instance may connect to a worker."""
        ticket = int.from_bytes(os.urandom(8), "little") >> 2
        with self._lock:
            self._tickets[ticket] = worker
        signature = worker.signature
        return AdmissionMessage(
            str(self._path),
            ticket,
            signature.batching,
            signature.spec.decoupled,
            worker.mode,
            worker.max_in_flight,
            signature.inputs,
            [output.name for output in signature.outputs],
            b"".join(visible_gpus()) if signature.spec.config.gpu_tensors else b"",
        )

    def revoke_tickets(self, workers: Collection[object]) -> None:
        """Revokes the unused tickets of some workers."""
        with self._lock:
            self._tickets = {ticket: worker for ticket, worker in self._tickets.items() if worker not in workers}

    def accept(self) -> None:
        """Accepts an instance, which the worker of its ticket serves in another thread."""
        try:
            connected, _ = self._socket.accept()
        except OSError as error:  # mostly: too many open files
            LOGGER.warning("A model instance cannot be accepted: %s", error)
            time.sleep(_PAUSE_S)
            return
        try:
            threading.Thread(target=self._serve, args=(connected,), daemon=True).start()
        except RuntimeError as error:  # too many threads
            LOGGER.warning("A model instance cannot be accepted: %s", error)
            connected.close()

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _serve(self, connected: socket.socket) -> None:
        channel = Channel(connected)
        try:
            notification, peer_fd, service_fd = channel.receive_fds()
        except EOFError:
            channel.close()
            return
        with self._lock:
            worker = self._tickets.pop(notification.sequence, None)
        if worker is None or notification.kind != NotificationKind.HELLO:
            LOGGER.warning("A connection without a ticket was refused.")
            channel.close()
            os.close(peer_fd)
            if service_fd is not None:
                os.close(service_fd)
            return
        try:
            server_client = None if service_fd is None else ServerClient(service_fd)
        except OSError:  # the descriptor is not a socket
            LOGGER.warning("A connection with a wrong descriptor was refused.")
            channel.close()
            os.close(peer_fd)
            assert service_fd is not None
            os.close(service_fd)
            return
        if server_client is not None and self._on_client is not None:
            self._on_client(server_client)
        gpu_memory = notification.offset + DOORBELL_SIZE if notification.size > DOORBELL_SIZE else 0
        try:
            worker.serve(channel, peer_fd, server_client, notification.offset, gpu_memory)
        except (OSError, RuntimeError, ValueError) as error:  # too many open files or threads, or no shared memory
            LOGGER.warning("A model instance cannot be served: %s", error)
            channel.close()
            if server_client is not None:
                server_client.close()
