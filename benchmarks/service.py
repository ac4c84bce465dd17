"""A contender's server as a subprocess: started, timed, and reliably stopped."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 15.0
_SETTLE_TIMEOUT_S = 30.0
_SETTLE_INTERVAL_S = 0.3
_IDLE_SHARE = 0.25  # of a core
_PR_SET_CHILD_SUBREAPER = 36


class ServiceError(RuntimeError):
    """A contender's server did not start, or did not stop, as it should."""


@dataclass
class Service:
    """A running server.

    Attributes:
        http_port: its port for HTTP, on 127.0.0.1.
        grpc_port: its port for gRPC.
        log: file with its output.
        pid: of the server's process, or of the user's process if the server is its child.
        ready_s: seconds from the start until the server reported every model ready.
        stop_s: seconds that stopping it took; known once ``stop`` has returned.
    """

    process: subprocess.Popen[str]
    http_port: int
    grpc_port: int
    log: Path
    pid: int = field(init=False)
    ready_s: float = field(init=False)
    stop_s: float = field(init=False)

    def __post_init__(self) -> None:
        """Wait until the server is ready."""
        report = self._read_event("ready", _START_TIMEOUT_S)
        self.ready_s = float(report["seconds"])
        self.pid = int(report["pid"])

    def stop(self) -> None:
        """Stop the server gracefully.

        Raises:
            ServiceError: if it does not report that, or its process does not end, within a minute.
        """
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.stop_s = float(self._read_event("stopped", _STOP_TIMEOUT_S)["seconds"])
        try:
            self.process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise ServiceError(
                f"the process still ran {_STOP_TIMEOUT_S:.0f} s after stop(); its log: {self.log}"
            ) from error

    def settle(self) -> None:
        """Wait until its processes take little processor time.

        Some are busy long after the server is ready, and some continue with requests that nobody waits for any longer.
        """
        deadline = time.monotonic() + _SETTLE_TIMEOUT_S
        used_s = self.cpu_s()
        while time.monotonic() < deadline:
            time.sleep(_SETTLE_INTERVAL_S)
            before_s, used_s = used_s, self.cpu_s()
            if used_s - before_s < _IDLE_SHARE * _SETTLE_INTERVAL_S:
                return

    def pause(self) -> None:
        """Pause its processes: some servers take processor time when idle."""
        for pid in self._pids():
            _signal(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let them continue."""
        for pid in self._pids():
            _signal(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Let them continue in a ``with`` block, and pause them again."""
        self.resume()
        try:
            yield
        finally:
            self.pause()

    def cpu_s(self) -> float:
        """Return the seconds of processor time that the server's processes have taken so far."""
        return self._cpu_s(self._pids())

    def own_cpu_s(self) -> float:
        """Return those of the process `pid` alone."""
        return self._cpu_s({self.pid})

    def _cpu_s(self, pids: set[int]) -> float:
        ticks = 0
        for pid in pids:
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def context_switches(self) -> int:
        """Count the context switches of all current threads of the server's processes."""
        count = 0
        for pid in self._pids():
            for status in Path(f"/proc/{pid}/task").glob("*/status"):
                with contextlib.suppress(OSError):
                    lines = status.read_text().splitlines()
                    count += sum(int(line.rpartition("\t")[2]) for line in lines if "ctxt_switches" in line)
        return count

    def memory_mb(self) -> float:
        """Add up the memory of the server's processes, shared pages in proportion, in MB (10**6 bytes)."""
        return memory_mb(self._pids())

    def _pids(self) -> set[int]:
        return {self.pid, *_descendants(self.pid)}

    def _read_event(self, event: str, timeout_s: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], timeout_s)
        line = self.process.stdout.readline() if readable else ""
        if line:
            report: dict[str, Any] = json.loads(line)
            if report["event"] == event:
                return report
        reason = "its process exited" if readable else f"{timeout_s:.0f} s passed"
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
        raise ServiceError(f"{reason} before the server was {event!r}; the end of its log, {self.log.name}:\n{tail}")


def memory_mb(pids: set[int]) -> float:
    """Add up the memory of processes, shared pages in proportion, in MB (10**6 bytes); exited ones have none."""
    kib = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            kib += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return kib * 1024 / 1e6


@contextlib.contextmanager
def running(
    script: str, arguments: Sequence[str], python: Path, environment: Mapping[str, str], log: Path
) -> Iterator[Service]:
    """Have a script serve during a ``with`` block.

    Args:
        script: name of a file beside this one, which reports and exits as `serve.py` describes.
        arguments: its arguments besides the ports.
        python: interpreter of the contender's virtual environment.
        environment: environment variables of the server's process.
        log: file for the server's output.

    Yields:
        The service, which is ready; it is stopped at the end of the block unless the block did that itself.

    Raises:
        ServiceError: if it does not start, or does not stop.
    """
    http_port, grpc_port, metrics_port = free_ports(3)
    command = [str(python), str(_FOLDER / script), *arguments]
    command += [f"--http-port={http_port}", f"--grpc-port={grpc_port}", f"--metrics-port={metrics_port}"]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env=dict(environment),
            cwd=log.parent,
            text=True,
            start_new_session=True,
        )
    with process:
        started: set[int] = set()
        try:
            service = Service(process, http_port, grpc_port, log)
            started = _descendants(process.pid)
            yield service
            service.resume()
            if process.poll() is None:
                service.stop()
        finally:
            _end(process)
            for pid in started & _descendants(os.getpid()):  # some leave processes behind
                _signal(pid, signal.SIGKILL)


@contextlib.contextmanager
def no_orphans() -> Iterator[None]:
    """Kill whatever processes servers leave behind, at the end of a ``with`` block."""
    _adopt_orphans()
    try:
        yield
    finally:
        _end_descendants()


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _end(process: subprocess.Popen[str]) -> None:
    """Let the process clean up after itself, and kill it if that takes too long."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_TIMEOUT_S)
    finally:
        process.kill()


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent dies, so that none escapes.

    A process group is not enough: a server may be started in a session of its own.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def _end_descendants() -> None:
    while True:
        for pid in _descendants(os.getpid()):
            _signal(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _descendants(root: int) -> set[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The command, in parentheses, may contain spaces; the parent is the second field after it.
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found: set[int] = set()
    generation = {root}
    while generation:
        generation = {pid for pid, parent in parents.items() if parent in generation}
        found |= generation
    return found
