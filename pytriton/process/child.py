"""The supervisor's side of a worker process: starts it, exchanges commands with it, relays its output."""

from __future__ import annotations

import codecs
import collections
import contextlib
import logging
import math
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytriton
from pytriton import json_logs
from pytriton.process.spec import ProcessSpec
from pytriton.proxy.telemetry.tracer import telemetry_environment
from pytriton.proxy.transport.control_channel import ControlChannel
from pytriton.proxy.wire.control import CommandMessage, CommandReply, decode_reply, encode_command
from pytriton.server.files import own_files
from pytriton.utils.exit_status import describe_exit, has_exited, wait_for_returncode
from pytriton.utils.working_folder import existing_or_root

LOGGER = logging.getLogger(__name__)
OUTPUT_LOGGER = logging.getLogger("pytriton.process.output")

_PROGRAM = """
import sys
_, fd, *sys.path[:] = sys.argv[1:]
del sys.argv[1:]
from pytriton.process.worker_main import main
main(int(fd))
"""
_POLL_INTERVAL_S = 0.2
_CLOSED_S = 1.0  # how long a process may take to exit once it has closed its control channel
_CHUNK = 1 << 16
_LAST_CHUNKS = 64

Then = Callable[[CommandReply], None]


class ChildProcess:
    """Starts a worker process.

    The process is tied to the thread that starts it, which must `watch` it. It has its own session, so that Ctrl-C in a
    terminal reaches only this process, which stops the other once the server no longer needs it.

    Args:
        spec: What to start.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, spec: ProcessSpec) -> None:
        self._spec = spec
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._popen = subprocess.Popen(
                    [
                        str(own_files(list(pytriton.__path__)).launcher),
                        str(os.getpid()),
                        *(*spec.interpreter, "-X", "faulthandler", "-c", _PROGRAM),
                        *(spec.name, str(theirs.fileno()), *spec.import_path),
                    ],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    # Read now: a model may be bound before the server is started.
                    env={**telemetry_environment(), **json_logs.environment(), **spec.environment},
                    cwd=existing_or_root(spec.folder),
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        self._control = ControlChannel(ours)
        self._pending: collections.deque[Then] = collections.deque()
        self._lock = threading.Lock()

    def send(self, command: CommandMessage, then: Then) -> None:
        """Sends a command.

        Args:
            command: The command.
            then: Called with the reply by the watching thread; not called if the process exits first.
        """
        with self._lock, contextlib.suppress(OSError):  # the watching thread notices that the process has exited
            self._pending.append(then)
            self._control.send(encode_command(command))

    def kill(self) -> None:
        """Kills the process."""
        self._popen.kill()

    def watch(self, unasked: Then) -> str:
        """Dispatches the process's replies and relays its output, until it exits.

        Args:
            unasked: Called with a message that is not a reply to a command.

        Returns:
            How the process exited, in words.
        """
        assert self._popen.stdout is not None
        output = _Output(self._popen.stdout.fileno(), self._spec)
        with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
            stack.callback(self._control.close)
            stack.enter_context(self._popen.stdout)
            selector.register(self._control, selectors.EVENT_READ, lambda: self._receive(unasked))
            selector.register(output, selectors.EVENT_READ, output.relay)
            timeout_s: float | None = _POLL_INTERVAL_S
            closed_at = math.inf
            with contextlib.suppress(OSError):  # an old kernel
                end = os.pidfd_open(self._popen.pid)
                stack.callback(os.close, end)
                selector.register(end, selectors.EVENT_READ, lambda: True)
                timeout_s = None
            while True:
                ready = selector.select(timeout_s)
                has_ended = has_exited(self._popen)
                for key, _ in ready:
                    if not key.data():
                        selector.unregister(key.fileobj)
                        if key.fileobj is self._control:
                            closed_at, timeout_s = time.monotonic(), _POLL_INTERVAL_S
                if has_ended:
                    break
                if time.monotonic() - closed_at > _CLOSED_S:
                    LOGGER.error("A worker process has closed its connection to this one, and is killed.")
                    self.kill()
                    closed_at = math.inf
            while self._receive(unasked, 0):
                pass
            output.close()
        return describe_exit(wait_for_returncode(self._popen))

    def _receive(self, unasked: Then, timeout_s: float | None = None) -> bool:
        try:
            reply = decode_reply(self._control.receive(timeout_s))
        except EOFError:
            return False
        except Exception:
            LOGGER.exception("A worker process sent a malformed message; it is killed.")
            self.kill()
            return False
        if reply.unrecoverable or not self._pending:
            unasked(reply)
        else:
            self._pending.popleft()(reply)
        return True


class _Output:
    """Relays a process's output to this process's stderr line by line; to its log, if that is JSON."""

    def __init__(self, fd: int, spec: ProcessSpec) -> None:
        self._spec = spec
        os.set_blocking(fd, False)
        self._fd = fd
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._line = ""

    def fileno(self) -> int:
        return self._fd

    def relay(self) -> bool:
        """Relays the available output; returns whether there was any."""
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return False
        lines, end, self._line = (self._line + self._decoder.decode(data)).rpartition("\n")
        if len(self._line) > _CHUNK:
            end, self._line = end + self._line, ""
        self._write(lines + end)
        return bool(data)

    def close(self) -> None:
        """Relays the remaining output, except what the process's children still print."""
        for _ in range(_LAST_CHUNKS):
            if not self.relay():
                break
        self._write(self._line)

    def _write(self, text: str) -> None:
        if not text:
            return
        if json_logs.is_enabled():
            json_logs.relay(text, OUTPUT_LOGGER, logging.INFO, model=self._spec.model.name, instance=self._spec.number)
            return
        with contextlib.suppress(AttributeError, OSError, ValueError):  # stderr is missing or closed
            sys.stderr.write(text)
            sys.stderr.flush()
