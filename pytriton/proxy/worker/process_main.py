"""The main function of a worker process, which serves one model instance for as long as its supervisor lives."""

from __future__ import annotations

import contextlib
import functools
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
from collections.abc import Callable

from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.json_logs import follow_environment
from pytriton.proxy.services.client import SERVICE_FD, process_client, use_process_channel
from pytriton.proxy.services.metric_sender import SENDER
from pytriton.proxy.telemetry.tracer import flush, use_environment
from pytriton.proxy.transport.adaptive_spin import share_cpu_limit
from pytriton.proxy.transport.arena import default_capacity
from pytriton.proxy.transport.control_channel import ControlChannel
from pytriton.proxy.wire.control import (
    HAS_READINESS_CHECK,
    Command,
    CommandMessage,
    CommandReply,
    decode_command,
    encode_reply,
)
from pytriton.proxy.worker.execution_mode import callable_kind
from pytriton.proxy.worker.listener import WorkerListener
from pytriton.proxy.worker.loaded_model import LoadedModel
from pytriton.proxy.worker.process_exit import exit_process, exit_uncaught
from pytriton.proxy.worker.threads import EventLoop, MainThread
from pytriton.proxy.worker.worker import ENDED, Worker
from pytriton.utils.error_text import shortened, summary_of, traceback_of
from pytriton.utils.limits import check_address_space

LOGGER = logging.getLogger(__name__)

CONTROL_FD = 3
"""The file descriptor of a worker process's control channel."""

_MAX_ERROR = 4096  # characters
_HUNG = 70  # the exit status of a process that its watchdog kills
_STOP_TIMEOUT_S = 30.0
_LOOP_TIMEOUT_S = 3.0  # for cancelled tasks to clean up, unless one blocks the event loop
_FINALIZE_TIMEOUT_S = 1.0  # for the thread to become free, if a call did not end in time
_POLL_INTERVAL_S = 0.1


class CommandHandler:
    """Handles the commands that a worker process receives.

    Args:
        control: The channel to the supervisor.
        load: Loads the model of a LOAD command.
        complete_config: Completes the model's configuration for a COMPLETE_CONFIG command.
        main_thread: Runs these functions and the model; commands are handled in another thread.
    """

    def __init__(
        self,
        control: ControlChannel,
        load: Callable[[CommandMessage], LoadedModel],
        complete_config: Callable[[CommandMessage], str] | None = None,
        main_thread: MainThread | None = None,
    ) -> None:
        self._control = control
        self._main_thread = main_thread or MainThread()
        self._load_model = load
        self._complete_config = complete_config
        self._sending = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._listener: WorkerListener | None = None
        self._worker: Worker | None = None
        self._loop: EventLoop | None = None
        self._loaded: LoadedModel | None = None
        self._retired = False

    def run(self) -> None:
        """Handles commands until STOP arrives or the supervisor exits."""
        self._selector.register(self._control, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select(_POLL_INTERVAL_S if self._retired else None):
                if key.fileobj is self._listener:
                    self._listener.accept()
                    continue
                command = decode_command(self._control.receive())
                self._reply(self._handle(command))
                if command.command == Command.STOP:
                    return
            if self._retired and self._worker is not None and not self._worker.connections:
                self._reply(self._handle(CommandMessage(Command.STOP)))
                return

    def _reply(self, reply: CommandReply) -> None:
        with self._sending:
            self._control.send(encode_reply(reply))

    def _report(self, error: PyTritonUnrecoverableError) -> None:
        with contextlib.suppress(OSError):
            self._reply(CommandReply(unrecoverable=str(error) or repr(error)))

    def _handle(self, command: CommandMessage) -> CommandReply:
        try:
            if command.command == Command.COMPLETE_CONFIG:
                assert self._complete_config is not None
                complete = functools.partial(self._complete_config, command)
                return CommandReply(config=self._main_thread.call(complete))
            if command.command == Command.LOAD:
                return CommandReply(config=HAS_READINESS_CHECK if self._load(command).is_ready is not None else "")
            if command.command == Command.ISSUE_TICKET:
                assert self._listener is not None
                assert self._worker is not None
                return CommandReply(admission=self._listener.issue_ticket(self._worker))
            if command.command == Command.STATUS:
                assert self._worker is not None
                idle_since_ns = int(self._worker.idle_since() * 1e9)
                return CommandReply(connections=self._worker.connections, idle_since_ns=idle_since_ns)
            if command.command == Command.END_STREAMS:
                assert self._worker is not None
                self._worker.end_streams(ENDED)
            elif command.command == Command.RETIRE:
                self._retired = True
            elif command.command == Command.CHECK_READY:
                assert self._loaded is not None
                if self._loaded.is_ready is not None and not self._loaded.is_ready():
                    return CommandReply(error="the model reports that it is not ready")
            else:
                self._stop()
        except BaseException as error:  # including SystemExit, which a model may raise while it is loaded
            reply = CommandReply(
                error=shortened(summary_of(error), _MAX_ERROR), detail=traceback_of(error, error.__traceback__)
            )
            traceback.clear_frames(error.__traceback__)  # which may have files to be written
            return reply
        return CommandReply()

    def _load(self, command: CommandMessage) -> LoadedModel:
        shared_memory = default_capacity()
        loaded = self._main_thread.call(lambda: self._load_model(command))
        check_address_space(shared_memory, default_capacity())
        self._loaded = loaded
        # If a plain function returns an awaitable, the main thread waits for the loop.
        is_async = callable_kind(loaded.infer_func).is_async
        self._loop = EventLoop(f"pytriton-loop-{command.model}", self._main_thread if is_async else None, loaded.loop)
        report = self._report if command.payload else None  # a model of a repository must not shut the server down
        self._worker = Worker(
            loaded.infer_func,
            loaded.signature,
            report,
            self._loop,
            _owner_fd(),
            _end_process_that_hangs,
            self._main_thread,
        )
        self._listener = WorkerListener(pathlib.Path(command.folder) / "workers", SENDER.succeed)
        self._selector.register(self._listener, selectors.EVENT_READ)
        return loaded

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.close(_STOP_TIMEOUT_S)
        if self._loop is not None:
            self._loop.stop()
            self._loop.join(_LOOP_TIMEOUT_S)
        if self._listener is not None:
            self._listener.close()
        if self._loaded is not None:
            self._main_thread.call(self._loaded.finalize, _FINALIZE_TIMEOUT_S)

    def release(self) -> bool:
        """Drops all references to the model, once `run` has returned; returns whether it has been deleted."""
        model = self._loaded.model if self._loaded is not None else None
        self._selector.close()
        self._listener = self._worker = self._loop = self._loaded = None
        return model is not None and model() is None


def run_worker(
    load: Callable[[CommandMessage], LoadedModel],
    complete_config: Callable[[CommandMessage], str] | None = None,
    control_fd: int = CONTROL_FD,
) -> None:
    """Runs a worker process until its supervisor stops it or exits.

    Args:
        load: Loads the model of a LOAD command.
        complete_config: Completes the model's configuration for a COMPLETE_CONFIG command. Only models of a repository
            get that command.
        control_fd: The file descriptor of the control channel.
    """
    share_cpu_limit()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # lines of several processes must not mix in the pipe
            stream.reconfigure(line_buffering=True, write_through=False)
    follow_environment()
    control = ControlChannel(socket.socket(fileno=control_fd))
    os.set_inheritable(control_fd, False)
    with contextlib.suppress(OSError):  # there may be none
        if control_fd != SERVICE_FD and stat.S_ISSOCK(os.fstat(SERVICE_FD).st_mode):
            os.set_inheritable(SERVICE_FD, False)
            use_process_channel(SERVICE_FD)
            client = process_client()
            assert client is not None
            SENDER.attach(client)
    use_environment()
    main_thread = MainThread()
    handler = CommandHandler(control, load, complete_config, main_thread)
    threading.Thread(
        target=_handle_commands, args=(handler, main_thread), name="pytriton-commands", daemon=True
    ).start()
    try:
        main_thread.run()
    except BaseException as error:  # the model ended its event loop, or a signal arrived
        exit_uncaught(error)


def _handle_commands(handler: CommandHandler, main_thread: MainThread) -> None:
    """Handles commands, and then exits the process."""
    try:
        handler.run()
    except (EOFError, OSError):
        os._exit(1)  # it is useless without its supervisor
    except BaseException as error:
        print(traceback_of(error, error.__traceback__), file=sys.stderr)
        _flush_stderr()
        os._exit(1)
    flush()
    exit_process(main_thread, handler.release)


def _end_process_that_hangs(hangs: bool) -> None:
    """Exits this process, so that its supervisor starts another; requests in flight fail."""
    if hangs:
        _flush_stderr()
        os._exit(_HUNG)


def _flush_stderr() -> None:
    with contextlib.suppress(Exception):  # a model may have put anything, or nothing, in its place
        sys.stderr.flush()


def _owner_fd() -> int | None:
    """Returns a pidfd of the parent process, or None if the system has no pidfds."""
    try:
        return os.pidfd_open(os.getppid())
    except (AttributeError, OSError):
        return None
