"""Supervises the process of a model instance."""

from __future__ import annotations

import functools
import itertools
import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pytriton.exceptions import PyTritonInvalidOperationError, PyTritonUnrecoverableError
from pytriton.process.child import ChildProcess
from pytriton.process.heartbeat import Heartbeat
from pytriton.process.spec import ProcessSpec
from pytriton.process.supervision import RESTARTING, RestartLoop
from pytriton.proxy.registry import AdmissionStatus
from pytriton.proxy.wire.control import Command, CommandMessage, CommandReply
from pytriton.proxy.wire.registration import AdmissionMessage

LOGGER = logging.getLogger(__name__)

_FRESH_S = 0.2  # how long a status stays valid
_GRACE_S = 0.5  # for a process that is to stop immediately

_numbers = itertools.count(1)


class WorkerSupervisor:
    """Starts a worker process, and restarts it when it exits unexpectedly.

    Args:
        spec: What to start.
        folder: The folder of mode 0700 for the process's sockets.
        on_unrecoverable: Called with a PyTritonUnrecoverableError that the inference callable raised.
        on_failing: Called with True when the process cannot be restarted, and with False when it has been, or is
            closed.
    """

    def __init__(
        self,
        spec: ProcessSpec,
        folder: Path,
        on_unrecoverable: Callable[[PyTritonUnrecoverableError], None],
        on_failing: Callable[[bool], None],
    ) -> None:
        """Starts the process; `wait_until_loaded` reports the outcome."""
        self._spec = spec
        self._folder = folder
        self._on_unrecoverable = on_unrecoverable
        self._lock = threading.Lock()  # guards the process and its state
        self._child: ChildProcess | None = None
        self._is_loaded = False
        self._admission: AdmissionMessage | None = None
        self._status: tuple[float, CommandReply] | None = None  # the latest status and when it came
        self._is_polled = False
        self._heartbeat: Heartbeat | None = None  # with a watchdog, once the inference callable has been created
        self._load_error = ""  # the factory's error, from the process
        self._failure = ""  # why there is no process
        self._is_awaited = False  # by an instance, which then receives the failure; later ones wait, too
        self._loop = RestartLoop(
            f"worker process of {spec.name}",
            f"pytriton-process-{spec.model.name}",
            self._live,
            self._note_end,
            on_failing,
        )
        self._loop.start()

    @property
    def restarts(self) -> int:
        """Number of restarts of the process."""
        return self._loop.restarts

    def wait_until_loaded(self) -> None:
        """Waits until the inference callable has been created.

        Raises:
            PyTritonInvalidOperationError: It could not be created.
        """
        self._loop.settled.wait()
        if self._failure:
            raise PyTritonInvalidOperationError(f"The process of {self._spec.name} {self._failure}")

    def issue_ticket(self) -> AdmissionStatus:
        """See `RemoteWorker`."""
        with self._lock:
            child, admission, self._admission = self._child, self._admission, None
            failure, self._failure = self._failure if self._is_awaited else "", ""
            self._is_awaited = admission is None and not failure
        if admission is not None and child is not None:
            child.send(CommandMessage(Command.ISSUE_TICKET), self._take_admission)  # for the next instance
            return AdmissionStatus(admission, self._loop.restarts)
        if failure:
            return AdmissionStatus(None, reason=f"its process {failure}")
        return AdmissionStatus(None, reason=RESTARTING, waiting=True)

    @property
    def connections(self) -> int:
        """Number of connected model instances, as far as is known."""
        if self._loop.closing.is_set():
            return int(self._loop.is_alive)
        status = self._refresh()
        return status.connections if status is not None else int(self._is_loaded)

    def idle_since(self) -> float:
        """Returns the ``time.monotonic()`` since which the process has been idle; now, while that is unknown."""
        status = self._refresh()
        if status is None:
            return time.monotonic() if self._is_loaded else 0.0
        return status.idle_since_ns / 1e9

    def retire(self) -> None:
        """Stops the process once no model instance is connected."""
        child, is_loaded = self._close()
        if child is not None and is_loaded:
            child.send(CommandMessage(Command.RETIRE), self._check)

    def end_streams(self, _reason: str) -> None:
        """Ends coroutines and streams; the process gives their clients the reason."""
        with self._lock:
            child = self._child if self._is_loaded else None
        if child is not None:
            child.send(CommandMessage(Command.END_STREAMS), self._check)

    def stop(self) -> None:
        """Tells the process to stop, without waiting."""
        child, is_loaded = self._close()
        if child is None:
            return
        if is_loaded:
            child.send(CommandMessage(Command.STOP), self._check)
        else:
            child.kill()

    def close(self, timeout_s: float) -> None:
        """Waits for the process to exit after `stop`, and kills it after a timeout.

        Args:
            timeout_s: How long to wait.
        """
        self._loop.join(max(timeout_s, _GRACE_S))
        with self._lock:
            child = self._child
        if child is not None:
            child.kill()
        self._loop.join()

    def _close(self) -> tuple[ChildProcess | None, bool]:
        """Notes that no process is needed any more; returns the process, and whether it has created its callable."""
        with self._lock:
            self._loop.closing.set()
            if self._heartbeat is not None:
                self._heartbeat.end()  # a process that stops does not respond
            return self._child, self._is_loaded

    def _note_end(self, how: str, was_loaded: bool, is_last: bool) -> None:
        with self._lock:
            if not was_loaded:
                self._failure = how
            elif is_last:
                self._failure = ""

    def _live(self) -> tuple[str, bool]:
        """Runs the process once; returns how it ended, and whether it had created its inference callable."""
        self._load_error = ""
        folder = self._folder / f"p{next(_numbers)}"
        try:
            folder.mkdir(mode=0o700)
            with self._lock:
                if self._loop.closing.is_set():
                    return "is no longer needed", False
                child = self._child = ChildProcess(self._spec)
        except Exception as error:  # an error of the system, or of a path or variable in the specification
            return f"cannot be started: {type(error).__name__}: {error}", False
        command = CommandMessage(
            Command.LOAD, folder=str(folder), model=self._spec.model.name, version=self._spec.model.version,
            instance=str(self._spec.number), payload=self._spec.payload,
        )  # fmt: skip
        try:
            child.send(command, self._take_loaded)
            how = child.watch(self._on_reply)
        finally:
            with self._lock:
                is_loaded = self._is_loaded
                if self._heartbeat is not None:
                    self._heartbeat.end()
                self._child = self._admission = self._status = self._heartbeat = None
                self._is_loaded = self._is_polled = False
            shutil.rmtree(folder, ignore_errors=True)
        if is_loaded:
            return how, True
        return self._load_error or f"{how} while it created its inference callable", False

    def _take_loaded(self, reply: CommandReply) -> None:
        child = self._child
        assert child is not None
        if reply.error:
            self._check(reply)
            self._load_error = f"cannot create its inference callable: {reply.error}"
            child.kill()
            return
        with self._lock:
            self._is_loaded = True
            is_closing = self._loop.closing.is_set()
            limit_s = self._spec.model.config.watchdog_secs
            if limit_s is not None and not is_closing:
                self._heartbeat = Heartbeat(self._spec.name, limit_s, functools.partial(_ask, child), child.kill)
                self._heartbeat.start()
        self._loop.note_loaded()
        if is_closing:
            child.kill()
        child.send(CommandMessage(Command.ISSUE_TICKET), self._take_admission)

    def _take_admission(self, reply: CommandReply) -> None:
        self._check(reply)
        with self._lock:
            self._admission = reply.admission
            self._failure = ""

    def _take_status(self, reply: CommandReply) -> None:
        self._check(reply)
        with self._lock:
            self._status = (time.monotonic(), reply)
            self._is_polled = False

    def _refresh(self) -> CommandReply | None:
        """Returns the process's status if it is recent, and requests a newer one."""
        with self._lock:
            child, is_polled = self._child if self._is_loaded else None, self._is_polled
            self._is_polled = child is not None
            status = self._status
        if child is not None and not is_polled:
            child.send(CommandMessage(Command.STATUS), self._take_status)
        return status[1] if status is not None and time.monotonic() - status[0] < _FRESH_S else None

    def _on_reply(self, reply: CommandReply) -> None:
        self._check(reply)
        if reply.unrecoverable:
            self._on_unrecoverable(PyTritonUnrecoverableError(reply.unrecoverable))

    def _check(self, reply: CommandReply) -> None:
        if reply.error:
            LOGGER.error("the process of %s failed: %s\n%s", self._spec.name, reply.error, reply.detail)


def _ask(child: ChildProcess, then: Callable[[], None]) -> None:
    child.send(CommandMessage(Command.STATUS), lambda _: then())
