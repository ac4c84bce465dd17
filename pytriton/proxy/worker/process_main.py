"""A worker process: serves one model instance with an inference callable of its own, for as long as its owner lives."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import pathlib
import selectors
import socket
import stat
import sys
import threading
import traceback

from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.proxy.services.client import SERVICES_FD, adopt
from pytriton.proxy.transport.control_channel import Leash
from pytriton.proxy.wire.control import encode_reply
from pytriton.proxy.wire.control import ASKS_READY, Order, OrderMessage, ReplyMessage, decode_order
from pytriton.proxy.worker.listener import Door
from pytriton.proxy.worker.threads import EventLoop
from pytriton.proxy.worker.worker import ENDED, Worker

LOGGER = logging.getLogger(__name__)

LEASH_FD = 3
"""The file descriptor that a worker process finds its leash under."""

_STOP_TIMEOUT_S = 30.0
_LOOK_EVERY_S = 0.1


class Host:
    """What a worker process does.

    Args:
        leash: The way to its owner.
    """

    def __init__(self, leash: Leash) -> None:
        """Has nothing to serve yet."""
        self._leash = leash
        self._sending = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._door: Door | None = None
        self._worker: Worker | None = None
        self._loop: EventLoop | None = None
        self._loaded: Loaded | None = None
        self._retired = False

    def run(self) -> None:
        """Does what the owner orders, until it orders to stop or is gone."""
        self._selector.register(self._leash, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select(_LOOK_EVERY_S if self._retired else None):
                if key.fileobj is self._door:
                    self._door.accept()
                    continue
                order = decode_order(self._leash.receive())
                self._say(self._obey(order))
                if order.order == Order.STOP:
                    return
            if self._retired and self._worker is not None and not self._worker.connections:
                self._say(self._obey(OrderMessage(Order.STOP)))
                return

    def _say(self, reply: ReplyMessage) -> None:
        with self._sending:
            self._leash.send(encode_reply(reply))

    def _report(self, error: PyTritonUnrecoverableError) -> None:
        with contextlib.suppress(OSError):
            self._say(ReplyMessage(unrecoverable=str(error) or repr(error)))

    def _obey(self, order: OrderMessage) -> ReplyMessage:
        try:
            if order.order == Order.COMPLETE:
                return ReplyMessage(config=_complete(order))
            if order.order == Order.LOAD:
                return ReplyMessage(config=ASKS_READY if self._load(order).is_ready is not None else "")
            if order.order == Order.ADMIT:
                assert self._door is not None
                assert self._worker is not None
                return ReplyMessage(admission=self._door.admit(self._worker))
            if order.order == Order.STATUS:
                assert self._worker is not None
                idle_since_ns = int(self._worker.idle_since() * 1e9)
                return ReplyMessage(connections=self._worker.connections, idle_since_ns=idle_since_ns)
            if order.order == Order.END_STREAMS:
                assert self._worker is not None
                self._worker.end_streams(ENDED)
            elif order.order == Order.RETIRE:
                self._retired = True
            elif order.order == Order.READY:
                assert self._loaded is not None
                if self._loaded.is_ready is not None and not self._loaded.is_ready():
                    return ReplyMessage(error="the model says that it is not ready")
            else:
                self._stop()
        except BaseException as error:  # a model may end its interpreter when it is loaded: that is an error as well
            return ReplyMessage(
                error="".join(traceback.format_exception_only(type(error), error))
                .strip()
                .removeprefix(f"{type(error).__module__}."),
                detail=traceback.format_exc(),
            )
        return ReplyMessage()

    def _load(self, order: OrderMessage) -> Loaded:
        loaded = _load(order)
        self._loaded = loaded
        self._loop = EventLoop(f"pytriton-loop-{order.model}")
        report = self._report if order.payload else None  # the server goes on without a model of a repository
        self._worker = Worker(loaded.infer_func, loaded.signature, report, self._loop, _owner_fd())
        self._door = Door(pathlib.Path(order.folder) / "workers")
        self._selector.register(self._door, selectors.EVENT_READ)
        return loaded

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.close(_STOP_TIMEOUT_S)
        if self._loop is not None:
            self._loop.stop()
        if self._door is not None:
            self._door.close()
        if self._loaded is not None:
            self._loaded.finalize()


def main(leash_fd: int = LEASH_FD) -> None:
    """Runs a worker process.

    Args:
        leash_fd: The file descriptor under which what starts it has put its leash.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whole lines, among those that others write to the same pipe
            stream.reconfigure(line_buffering=True, write_through=False)
    leash = Leash(socket.socket(fileno=leash_fd))
    os.set_inheritable(leash_fd, False)
    with contextlib.suppress(OSError):  # it need not have one
        if leash_fd != SERVICES_FD and stat.S_ISSOCK(os.fstat(SERVICES_FD).st_mode):
            os.set_inheritable(SERVICES_FD, False)
            adopt(SERVICES_FD)
    try:
        Host(leash).run()
    except (EOFError, OSError):
        os._exit(1)  # without its owner it serves nobody, and what the model's threads do must not keep it
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _complete(order: OrderMessage) -> str:
    from pytriton.python_backend.loader import complete

    return complete(order)


def _load(order: OrderMessage) -> Loaded:
    if order.payload:
        from pytriton.process import load

        return load(order)
    from pytriton.python_backend.loader import load as load_model

    return load_model(order)


def _owner_fd() -> int | None:
    """A pidfd of the process that has started this one, where the system has such."""
    try:
        return os.pidfd_open(os.getppid())
    except (AttributeError, OSError):
        return None
