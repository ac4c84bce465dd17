"""Keeps the process of a model instance alive."""

from __future__ import annotations

import itertools
import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pytriton.exceptions import PyTritonInvalidOperationError, PyTritonUnrecoverableError
from pytriton.process.child import ChildProcess
from pytriton.process.spec import ProcessSpec
from pytriton.proxy.registry import AdmissionStatus
from pytriton.proxy.wire.control import Command, CommandMessage, CommandReply
from pytriton.proxy.wire.registration import AdmissionMessage

LOGGER = logging.getLogger(__name__)

_FIRST_DELAY_S = 0.1
_MAX_DELAY_S = 10.0
_FORGIVEN_AFTER_S = 60.0
_FRESH_S = 0.2  # how old the news of a process may be
_GRACE_S = 0.5  # for a process that is to end at once

_numbers = itertools.count(1)


class WorkerSupervisor:
    """A worker in a process of its own, which is started again when it ends by itself.

    Args:
        plan: What it is made of.
        folder: Where the process may put its sockets, in a folder of mode 0700.
        on_unrecoverable: Told of a PyTritonUnrecoverableError that the inference callable raised.
    """

    def __init__(
        self, plan: ProcessSpec, folder: Path, on_unrecoverable: Callable[[PyTritonUnrecoverableError], None]
    ) -> None:
        """Starts the process; `wait_until_loaded` tells how that went."""
        self._plan = plan
        self._folder = folder
        self._on_unrecoverable = on_unrecoverable
        self._lock = threading.Lock()  # held while the process is exchanged, and what is known of it
        self._child: ChildProcess | None = None
        self._is_loaded = False
        self._admission: AdmissionMessage | None = None
        self._status: tuple[float, CommandReply] | None = None  # when it came, and what it says
        self._is_asked = False
        self._load_error = ""  # what the process has said of the factory
        self._failure = ""  # why it is not there
        self._is_awaited = False  # by an instance, which is told of the failure then; whoever comes later waits too
        self._restarts = 0
        self._closing = threading.Event()
        self._settled = threading.Event()  # the first process is loaded, or has failed
        self._thread = threading.Thread(target=self._run, name=f"pytriton-process-{plan.spec.name}", daemon=True)
        self._thread.start()

    def wait_until_loaded(self) -> None:
        """Waits until the inference callable is there.

        Raises:
            PyTritonInvalidOperationError: It could not be made.
        """
        self._settled.wait()
        if self._failure:
            raise PyTritonInvalidOperationError(f"The process of {self._plan.name} {self._failure}")

    def issue_ticket(self) -> AdmissionStatus:
        """See `RemoteWorker`."""
        with self._lock:
            child, admission, self._admission = self._child, self._admission, None
            failure, self._failure = self._failure if self._is_awaited else "", ""
            self._is_awaited = admission is None and not failure
        if admission is not None and child is not None:
            child.ask(CommandMessage(Command.ISSUE_TICKET), self._take_admission)  # for the next
            return AdmissionStatus(admission, self._restarts)
        if failure:
            return AdmissionStatus(None, reason=f"its process {failure}")
        return AdmissionStatus(None, reason="its process is being started again", waiting=True)

    @property
    def connections(self) -> int:
        """How many model instances are connected, as far as is known."""
        if self._closing.is_set():
            return int(self._thread.is_alive())
        status = self._refresh()
        return status.connections if status is not None else int(self._is_loaded)

    def idle_since(self) -> float:
        """Since when it has had nothing to do, as ``time.monotonic()`` tells it; now, while that is not known."""
        status = self._refresh()
        if status is None:
            return time.monotonic() if self._is_loaded else 0.0
        return status.idle_since_ns / 1e9

    def retire(self) -> None:
        """Ends the process once no model instance is connected."""
        with self._lock:
            self._closing.set()
            child = self._child if self._is_loaded else None
        if child is not None:
            child.ask(CommandMessage(Command.RETIRE), self._check)

    def end_streams(self, _reason: str) -> None:
        """Ends coroutines and streams, and tells their clients why, in the words of the process."""
        with self._lock:
            child = self._child if self._is_loaded else None
        if child is not None:
            child.ask(CommandMessage(Command.END_STREAMS), self._check)

    def stop(self) -> None:
        """Has the process end, and does not wait for it."""
        with self._lock:
            self._closing.set()
            child, is_loaded = self._child, self._is_loaded
        if child is None:
            return
        if is_loaded:
            child.ask(CommandMessage(Command.STOP), self._check)
        else:
            child.kill()

    def close(self, timeout_s: float) -> None:
        """Waits until the process has ended, which `stop` has told to, and ends it if it takes longer.

        Args:
            timeout_s: How long to wait.
        """
        self._thread.join(max(timeout_s, _GRACE_S))
        with self._lock:
            child = self._child
        if child is not None:
            child.kill()
        self._thread.join()

    def _run(self) -> None:
        delay_s = 0.0
        while not self._closing.is_set():
            start = time.monotonic()
            how, was_loaded = self._live()
            if self._closing.is_set() or not self._settled.is_set():
                self._failure = "" if was_loaded else how
                self._settled.set()
                return
            if time.monotonic() - start > _FORGIVEN_AFTER_S:
                delay_s = 0.0
            self._restarts += 1
            LOGGER.error(
                "worker process of %s %s; started again%s",
                self._plan.name,
                how,
                f" in {delay_s:g} s" if delay_s else "",
            )
            if not was_loaded:
                with self._lock:
                    self._failure = how
            self._closing.wait(delay_s)
            delay_s = min(max(delay_s * 2, _FIRST_DELAY_S), _MAX_DELAY_S)

    def _live(self) -> tuple[str, bool]:
        """Runs the process once, and tells what became of it, and whether it had made its inference callable."""
        self._load_error = ""
        folder = self._folder / f"p{next(_numbers)}"
        try:
            folder.mkdir(mode=0o700)
            with self._lock:
                if self._closing.is_set():
                    return "is not needed any more", False
                child = self._child = ChildProcess(self._plan)
        except Exception as error:  # of the system, or what the plan names is no program, path or variable
            return f"cannot be started: {type(error).__name__}: {error}", False
        command = CommandMessage(
            Command.LOAD, folder=str(folder), model=self._plan.spec.name, version=self._plan.spec.version,
            instance=str(self._plan.number), payload=self._plan.payload,
        )  # fmt: skip
        try:
            child.ask(command, self._take_loaded)
            how = child.watch(self._hear)
        finally:
            with self._lock:
                is_loaded = self._is_loaded
                self._child = self._admission = self._status = None
                self._is_loaded = self._is_asked = False
            shutil.rmtree(folder, ignore_errors=True)
        if is_loaded:
            return how, True
        return self._load_error or f"{how} while it made its inference callable", False

    def _take_loaded(self, reply: CommandReply) -> None:
        child = self._child
        assert child is not None
        if reply.error:
            self._check(reply)
            self._load_error = f"cannot make its inference callable: {reply.error}"
            child.kill()
            return
        with self._lock:
            self._is_loaded = True
            is_closing = self._closing.is_set()
        self._settled.set()
        if is_closing:
            child.kill()
        child.ask(CommandMessage(Command.ISSUE_TICKET), self._take_admission)

    def _take_admission(self, reply: CommandReply) -> None:
        self._check(reply)
        with self._lock:
            self._admission = reply.admission
            self._failure = ""

    def _take_status(self, reply: CommandReply) -> None:
        self._check(reply)
        with self._lock:
            self._status = (time.monotonic(), reply)
            self._is_asked = False

    def _refresh(self) -> CommandReply | None:
        """What the process has said of itself a moment ago; asks for more."""
        with self._lock:
            child, is_asked = self._child if self._is_loaded else None, self._is_asked
            self._is_asked = child is not None
            status = self._status
        if child is not None and not is_asked:
            child.ask(CommandMessage(Command.STATUS), self._take_status)
        return status[1] if status is not None and time.monotonic() - status[0] < _FRESH_S else None

    def _hear(self, reply: CommandReply) -> None:
        self._check(reply)
        if reply.unrecoverable:
            self._on_unrecoverable(PyTritonUnrecoverableError(reply.unrecoverable))

    def _check(self, reply: CommandReply) -> None:
        if reply.error:
            LOGGER.error("the process of %s failed: %s\n%s", self._plan.name, reply.error, reply.detail)
