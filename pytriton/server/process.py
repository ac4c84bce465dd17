"""Starts, watches and stops the tritonserver subprocess."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence

from pytriton.exceptions import PyTritonRuntimeError
from pytriton.server.log import ServerLog
from pytriton.server.log_relay import LogRelay
from pytriton.utils.exit_status import wait_for_returncode
from pytriton.utils.working_folder import existing_or_root

_DRAIN_TIMEOUT_S = 1.0  # for the rest of the server's output after its exit


class ServerProcess:
    """A subprocess that never outlives this process, even if this one is killed.

    The kernel ties it to the thread that starts it; that thread also waits for its exit.

    Args:
        command: The launcher and its command; the launcher gets this process's id as its first argument.
        environment: The subprocess's environment variables.
        on_exit: Called in the watching thread when the subprocess has exited.
        fds: File descriptors that the subprocess inherits.
        folder: Its working directory, if that is still there; by default, this process's.

    Raises:
        PyTritonRuntimeError: It cannot be started.
    """

    def __init__(
        self,
        launcher: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        on_exit: Callable[[], None],
        fds: Sequence[int] = (),
        folder: pathlib.Path | None = None,
    ) -> None:
        """Starts the subprocess."""
        self.log = ServerLog()
        self._command = [launcher, str(os.getpid()), *command]
        self._environment = dict(environment)
        self._fds = tuple(fds)
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._returncode: int | None = None
        self._error: Exception | None = None
        self._started = threading.Event()
        self._ended = threading.Event()
        try:
            threading.Thread(target=self._run, args=(on_exit,), name="pytriton-server", daemon=True).start()
            self._started.wait()
        except RuntimeError as error:  # the system cannot create another thread
            self._error = error
            self._ended.set()
        if self._error is not None:
            raise PyTritonRuntimeError(f"The server cannot be started: {self._error}") from self._error

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit status, or minus the signal that killed it; None while it is running, or if that is unknown."""
        return self._returncode if self._ended.is_set() else None

    def is_alive(self) -> bool:
        """Returns whether it is running."""
        return not self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for its exit.

        Returns:
            Whether it has exited.
        """
        return self._ended.wait(timeout_s)

    def stop(self, timeout_s: float) -> None:
        """Terminates the server, and kills it if it is still running after ``timeout_s`` seconds."""
        for number, timeout in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, None)):
            if self._process is not None and self.is_alive():
                self._process.send_signal(number)
                self._ended.wait(timeout)

    def _run(self, on_exit: Callable[[], None]) -> None:
        relay = LogRelay(self.log)
        reader = threading.Thread(target=self._read, args=[relay], name="pytriton-server-output", daemon=True)
        try:
            relay.start()
            reader.start()  # first: if this failed later, the server would have to be killed
            self._process = process = subprocess.Popen(
                self._command,
                env=self._environment,
                pass_fds=self._fds,
                cwd=None if self._folder is None else existing_or_root(self._folder),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # Ctrl-C in a terminal reaches this process alone, which stops the server
            )
        except Exception as error:  # from the system, or an invalid environment variable
            self._error = error
            self._ended.set()
            self._started.set()
            if reader.ident is None:  # otherwise it closes the relay
                relay.close()
            return
        self._started.set()
        self._returncode = wait_for_returncode(process)
        reader.join(_DRAIN_TIMEOUT_S)  # processes started by its models may survive and keep its output open
        self._ended.set()
        on_exit()

    def _read(self, relay: LogRelay) -> None:
        self._started.wait()
        if self._process is None:
            relay.close()
            return
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                relay.write(line)
        relay.close()
