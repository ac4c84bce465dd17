"""A worker process of the controller's: from its start to its end."""

from __future__ import annotations

import codecs
import collections
import contextlib
import logging
import os
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

import pytriton
from pytriton.process.spec import ProcessSpec
from pytriton.proxy.transport.control_channel import ControlChannel
from pytriton.proxy.wire.control import CommandMessage, CommandReply, decode_reply, encode_command
from pytriton.server.files import own_files
from pytriton.utils.exit_status import describe_exit

LOGGER = logging.getLogger(__name__)

_PROGRAM = """
import sys
_, fd, *sys.path[:] = sys.argv[1:]
del sys.argv[1:]
from pytriton.process.worker_main import main
main(int(fd))
"""
_POLL_INTERVAL_S = 0.2
_CHUNK = 1 << 16
_LAST_CHUNKS = 64

Then = Callable[[CommandReply], None]


class ChildProcess:
    """A worker process.

    It ends when the thread that starts it does; that thread is to `watch` it. It has a session of its own, so that
    Ctrl-C in a terminal reaches this process alone, which ends the other once the server needs it no more.

    Args:
        plan: What it is made of.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, plan: ProcessSpec) -> None:
        """Starts it."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._popen = subprocess.Popen(
                    [
                        str(own_files(list(pytriton.__path__)).launcher),
                        str(os.getpid()),
                        *(sys.executable, "-X", "faulthandler", "-c", _PROGRAM),
                        *(plan.name, str(theirs.fileno()), *plan.import_path),
                    ],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=plan.environment,
                    cwd=plan.folder,
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        self._control = ControlChannel(ours)
        self._asked: collections.deque[Then] = collections.deque()
        self._lock = threading.Lock()

    def ask(self, command: CommandMessage, then: Then) -> None:
        """Orders something.

        Args:
            command: What.
            then: Called with the reply, by the thread that watches; not at all where the process ends before.
        """
        with self._lock, contextlib.suppress(OSError):  # the watching thread learns of its end
            self._asked.append(then)
            self._control.send(encode_command(command))

    def kill(self) -> None:
        """Ends it at once."""
        self._popen.kill()

    def watch(self, unasked: Then) -> str:
        """Passes on what it says and prints, until it has ended.

        Args:
            unasked: Called with what it says of its own accord.

        Returns:
            How it ended.
        """
        assert self._popen.stdout is not None
        output = _Output(self._popen.stdout.fileno())
        with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
            stack.callback(self._control.close)
            stack.enter_context(self._popen.stdout)
            selector.register(self._control, selectors.EVENT_READ, lambda: self._receive(unasked))
            selector.register(output, selectors.EVENT_READ, output.relay)
            timeout_s: float | None = _POLL_INTERVAL_S
            with contextlib.suppress(OSError):  # of an old kernel
                end = os.pidfd_open(self._popen.pid)
                stack.callback(os.close, end)
                selector.register(end, selectors.EVENT_READ, lambda: True)
                timeout_s = None
            while True:
                ready = selector.select(timeout_s)
                has_ended = self._popen.poll() is not None
                for key, _ in ready:
                    if not key.data():
                        selector.unregister(key.fileobj)
                if has_ended:
                    break
            while self._receive(unasked, 0):
                pass
            output.close()
        return describe_exit(self._popen.wait())

    def _receive(self, unasked: Then, timeout_s: float | None = None) -> bool:
        try:
            reply = decode_reply(self._control.receive(timeout_s))
        except EOFError:
            return False
        except Exception:
            LOGGER.exception("What a worker process says makes no sense; it is ended.")
            self.kill()
            return False
        if reply.unrecoverable or not self._asked:
            unasked(reply)
        else:
            self._asked.popleft()(reply)
        return True


class _Output:
    """What a process prints, passed on to this one's stderr line by line."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._line = ""

    def fileno(self) -> int:
        return self._fd

    def relay(self) -> bool:
        """Passes on what has come; returns whether there was something."""
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
        """Passes on what is left, but for what its own children go on to print."""
        for _ in range(_LAST_CHUNKS):
            if not self.relay():
                break
        self._write(self._line)

    @staticmethod
    def _write(text: str) -> None:
        if not text:
            return
        with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, or it is closed
            sys.stderr.write(text)
            sys.stderr.flush()
