"""Tells model instances in the server which worker serves them. Twin of ``backend/registration.h``.

Instances ask over ZeroMQ, then connect to the worker's socket with the ticket that they were given.

Request (REQ): ``pytriton``, the protocol's version as text, a RegistrationMessage.
Reply (REP): ``admitted``, an AdmissionMessage; or ``refused``, the reason as text.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import secrets
import socket
import threading
from collections.abc import Sequence

import zmq

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.proxy.channel import Channel
from pytriton.proxy.protocol import (
    PROTOCOL_VERSION,
    AdmissionMessage,
    BellKind,
    RegistrationMessage,
    decode_registration,
    encode_admission,
)
from pytriton.proxy.worker import Worker

LOGGER = logging.getLogger(__name__)

_MAX_SOCKET_PATH = 107  # bytes, of sockaddr_un


class Registry:
    """Knows the bound models' workers, and brings model instances together with them.

    Args:
        folder: Where its two sockets go; a folder of mode 0700.

    Raises:
        PyTritonBadParameterError: The folder's path is too long for sockets.
        OSError: The sockets cannot be made there.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        """Opens the sockets and starts to answer."""
        self._workers: dict[str, Sequence[Worker]] = {}
        self._tickets: dict[int, Worker] = {}
        self._lock = threading.Lock()
        self._socket_path = folder / "workers"
        registry_path = folder / "registry"
        if len(str(registry_path).encode()) > _MAX_SOCKET_PATH:
            raise PyTritonBadParameterError(
                f"The path {registry_path} is too long for a socket, which {_MAX_SOCKET_PATH} bytes may name: give "
                "another folder by workspace= or by the environment variable PYTRITON_HOME."
            )
        self.endpoint = f"ipc://{registry_path}"
        """Where model instances ask, as a ZeroMQ endpoint."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self._socket_path))
        self._listener.listen(128)
        self._context = zmq.Context()
        self._questions = self._context.socket(zmq.REP)
        self._questions.linger = 0
        self._questions.bind(self.endpoint)
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="pytriton-registry", daemon=True)
        self._thread.start()

    def add(self, binding: str, workers: Sequence[Worker]) -> None:
        """Lets instances of a model find its workers.

        Args:
            binding: Under which the instances ask.
            workers: One per inference callable; at least one.
        """
        with self._lock:
            self._workers[binding] = workers

    def remove(self, binding: str) -> None:
        """Admits no more instances of a model."""
        with self._lock:
            workers = self._workers.pop(binding, ())
            self._tickets = {ticket: worker for ticket, worker in self._tickets.items() if worker not in workers}

    def close(self) -> None:
        """Stops answering."""
        self._stop.shutdown(socket.SHUT_RDWR)  # closing alone would go unnoticed while a fork holds the socket too
        self._stop.close()
        self._thread.join()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._questions, zmq.POLLIN)
        poller.register(self._listener, zmq.POLLIN)
        poller.register(self._stopped, zmq.POLLIN)
        try:
            while True:
                ready = dict(poller.poll())
                if self._stopped.fileno() in ready:
                    return
                if self._questions in ready:
                    self._questions.send_multipart(self._answer(self._questions.recv_multipart()))
                if self._listener.fileno() in ready:
                    connected, _ = self._listener.accept()
                    threading.Thread(target=self._greet, args=(connected,), daemon=True).start()
        finally:
            self._stopped.close()
            self._listener.close()
            self._questions.close()
            self._context.term()
            with contextlib.suppress(OSError):
                self._socket_path.unlink()

    def _answer(self, question: list[bytes]) -> list[bytes]:
        try:
            return [b"admitted", encode_admission(self._admit(question))]
        except _RefusedError as refusal:
            LOGGER.warning("A model instance was refused: %s", refusal)
            return [b"refused", str(refusal).encode()]
        except Exception as error:
            LOGGER.exception("A model instance's registration makes no sense.")
            return [b"refused", f"the registration makes no sense: {error!r}".encode()]

    def _admit(self, question: list[bytes]) -> AdmissionMessage:
        if len(question) != 3 or question[0] != b"pytriton":
            raise _RefusedError("this is the registry of pytriton, and the question was another")
        if question[1] != str(PROTOCOL_VERSION).encode():
            raise _RefusedError(
                f"the server's pytriton backend speaks version {question[1].decode(errors='replace')} of the proxy "
                f"protocol, the pytriton package version {PROTOCOL_VERSION}: install the same pytriton on both sides"
            )
        registration: RegistrationMessage = decode_registration(question[2])
        with self._lock:
            workers = self._workers.get(registration.binding)
            if not workers:
                raise _RefusedError(
                    f"model {registration.model!r} is not bound any more: its process has unloaded it or has ended"
                )
            waiting = list(self._tickets.values())
            worker = min(workers, key=lambda each: each.connections + waiting.count(each))
            ticket = secrets.randbits(62)
            self._tickets[ticket] = worker
        signature = worker.signature
        return AdmissionMessage(
            str(self._socket_path),
            ticket,
            signature.batching,
            signature.spec.decoupled,
            worker.in_flight,
            signature.inputs,
            [output.name for output in signature.outputs],
        )

    def _greet(self, connected: socket.socket) -> None:
        """Brings a connection to the worker that its ticket is for."""
        channel = Channel(connected)
        try:
            bell, peer_fd = channel.receive_fd()
        except EOFError:
            channel.close()
            return
        with self._lock:
            worker = self._tickets.pop(bell.sequence, None)
        if worker is None or bell.kind != BellKind.HELLO:
            LOGGER.warning("A connection without a ticket was refused.")
            channel.close()
            os.close(peer_fd)
            return
        worker.start(channel, peer_fd)


class _RefusedError(Exception):
    """Why a model instance is not admitted."""
