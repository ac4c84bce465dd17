"""The registry, where model instances look up their workers.

Its client is ``backend/model_instance/registry_client.h``. An instance sends a request over ZeroMQ, then connects to
the worker's socket with the ticket from the reply.

Request (REQ): ``pytriton``, the protocol's version as text, a RegistrationMessage.
Reply (REP): ``admitted``, an AdmissionMessage and, if the worker has its own process, the number of its restarts as
text; or ``waiting`` and the reason as text, while that process is being restarted; or ``failed`` and the reason as
text, if its last restart has failed; or ``refused`` and the reason as text.
"""

from __future__ import annotations

import contextlib
import logging
import pathlib
import re
import socket
import sys
import threading
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import zmq

from pytriton.exceptions import PyTritonRuntimeError
from pytriton.proxy.services.listener import ServiceListener
from pytriton.proxy.transport.unix_socket import check_socket_path
from pytriton.proxy.wire.notification import PROTOCOL_VERSION
from pytriton.proxy.wire.registration import (
    AdmissionMessage,
    RegistrationMessage,
    decode_registration,
    encode_admission,
)
from pytriton.proxy.worker.listener import WorkerListener
from pytriton.proxy.worker.worker import Worker

LOGGER = logging.getLogger(__name__)


class AdmissionStatus(NamedTuple):
    """The reply of a worker in its own process to a request for admission.

    Attributes:
        admission: Where the instance is to connect; None if it is not admitted.
        restarts: Number of restarts of the process.
        reason: Why there is no admission.
        waiting: Whether an admission may be possible soon.
    """

    admission: AdmissionMessage | None
    restarts: int = 0
    reason: str = ""
    waiting: bool = False


class RemoteWorker(Protocol):
    """A worker in its own process."""

    def issue_ticket(self) -> AdmissionStatus:
        """Issues a ticket for one model instance if the worker is ready; returns at once."""


class Registry:
    """Maps bindings to workers, and admits model instances to them.

    Args:
        folder: The folder of its sockets, of mode 0700.

    Raises:
        PyTritonBadParameterError: The folder's path is too long for sockets.
        PyTritonRuntimeError: gevent or eventlet has replaced the threads of this process.
        OSError: The sockets cannot be created there.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        """Opens the sockets and starts the thread."""
        _check_threads()
        self._workers: dict[str, Sequence[Worker | RemoteWorker]] = {}
        self._lock = threading.Lock()
        self.folder = folder
        """The folder of the sockets."""
        registry_path = folder / "registry"
        check_socket_path(registry_path)
        self.endpoint = f"ipc://{registry_path}"
        """The ZeroMQ endpoint for model instances."""
        self._listener = WorkerListener(folder / "workers")
        self.services = ServiceListener(folder / "controller")
        """Listens for the server's connection, which becomes the controller's own service channel."""
        self._context = zmq.Context()
        self._requests = self._context.socket(zmq.REP)
        self._requests.linger = 0
        self._requests.bind(self.endpoint)
        self._stop, self._stopped = socket.socketpair()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="pytriton-registry", daemon=True)
        self._thread.start()

    def add(self, binding: str, workers: Sequence[Worker | RemoteWorker]) -> None:
        """Adds the workers of a model.

        Args:
            binding: The key that instances look up.
            workers: One per inference callable, at least one. The model's first instance gets the first, and so on.

        Raises:
            PyTritonRuntimeError: No instance would find the registry, which is closed, or whose folder was deleted.
        """
        if self._is_closed:
            raise PyTritonRuntimeError("The server was stopped, and no model can be loaded any more.")
        if not self.folder.exists():
            raise PyTritonRuntimeError(
                f"The folder {str(self.folder)!r} has been deleted while the server used it, and no model can be "
                "loaded any more. Restart the program, with a folder that is not cleaned up as workspace= or as the "
                "environment variable PYTRITON_HOME."
            )
        with self._lock:
            self._workers[binding] = workers

    def remove(self, binding: str) -> None:
        """Removes the workers of a model, and revokes their tickets."""
        with self._lock:
            workers = self._workers.pop(binding, ())
        self._listener.revoke_tickets(workers)

    def close(self) -> None:
        """Closes the sockets and stops the thread."""
        self._is_closed = True
        self._stop.shutdown(socket.SHUT_RDWR)  # close() alone goes unnoticed while a fork holds the socket
        self._stop.close()
        self._thread.join()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._requests, zmq.POLLIN)
        poller.register(self._listener, zmq.POLLIN)
        poller.register(self.services, zmq.POLLIN)
        poller.register(self._stopped, zmq.POLLIN)
        try:
            while True:
                ready = dict(poller.poll())
                if self._stopped.fileno() in ready:
                    return
                if self._requests in ready:
                    with contextlib.suppress(zmq.Again):  # its sender has disconnected meanwhile
                        request = self._requests.recv_multipart(zmq.NOBLOCK)
                        self._requests.send_multipart(self._respond(request))
                if self._listener.fileno() in ready:
                    self._listener.accept()
                if self.services.fileno() in ready:
                    self.services.accept()
        finally:
            self._stopped.close()
            self._listener.close()
            self.services.close()
            self._requests.close()
            self._context.term()

    def _respond(self, request: list[bytes]) -> list[bytes]:
        try:
            return self._issue_ticket(request)
        except _RefusedError as refusal:
            LOGGER.warning("A model instance was refused: %s", refusal)
            return [refusal.verdict, str(refusal).encode()]
        except Exception as error:
            LOGGER.exception("A model instance sent a malformed registration.")
            return [b"refused", f"the registration is malformed: {error!r}".encode()]

    def _issue_ticket(self, request: list[bytes]) -> list[bytes]:
        if len(request) != 3 or request[0] != b"pytriton":
            raise _RefusedError("this is the registry of pytriton, and the request is not meant for it")
        if request[1] != str(PROTOCOL_VERSION).encode():
            raise _RefusedError(
                f"the server's pytriton backend speaks version {request[1].decode(errors='replace')} of the proxy "
                f"protocol, the pytriton package version {PROTOCOL_VERSION}: install the same pytriton on both sides"
            )
        registration: RegistrationMessage = decode_registration(request[2])
        with self._lock:
            workers = self._workers.get(registration.binding)
            if not workers:
                raise _RefusedError(
                    f"model {registration.model!r} is no longer bound: its process has unloaded it or has ended"
                )
            worker = workers[_position(registration.instance) % len(workers)]
            if isinstance(worker, Worker):
                return [b"admitted", encode_admission(self._listener.issue_ticket(worker))]
        status = worker.issue_ticket()
        if status.admission is not None:
            return [b"admitted", encode_admission(status.admission), str(status.restarts).encode()]
        if status.waiting:
            return [b"waiting", status.reason.encode()]
        raise _FailedError(status.reason)


def _position(instance: str) -> int:
    """Returns the index of an instance, which Triton appends to its name."""
    number = re.search(r"_(\d+)$", instance)
    return int(number[1]) if number else 0


class _RefusedError(Exception):
    """Raised when a model instance is refused."""

    verdict = b"refused"


class _FailedError(_RefusedError):
    """Raised when the last restart of a worker's process has failed."""

    verdict = b"failed"


def _check_threads() -> None:
    """Checks that threads are real ones: a greenlet that waits for the server would stop all others."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and (gevent.is_module_patched("threading") or gevent.is_module_patched("select")):
        library = "gevent"
    elif eventlet is not None and (eventlet.is_monkey_patched("thread") or eventlet.is_monkey_patched("select")):
        library = "eventlet"
    else:
        return
    raise PyTritonRuntimeError(
        f"{library} has replaced the threads of this program by greenlets, in which no model can be served: serve in a "
        f"program without it. Clients work with {library}."
    )
