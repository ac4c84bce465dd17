"""What the servers of all contenders share: their arguments, and what they report.

A server prints JSON lines on stdout: how many seconds it took to become ready, and to stop. It serves until its
standard input closes, which also stops it when its parent dies.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from workloads import NAMES

_FOLDER = Path(__file__).parent


def parser(description: str | None) -> argparse.ArgumentParser:
    """Parse the arguments that every server is given."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--http-port", type=int, required=True)
    made.add_argument("--grpc-port", type=int, required=True)
    made.add_argument("--metrics-port", type=int, required=True)
    return made


def workload_parser(description: str | None) -> argparse.ArgumentParser:
    """Parse the arguments of a server of a workload."""
    made = parser(description)
    made.add_argument("--workload", choices=NAMES, required=True)
    made.add_argument("--models", type=int, default=1, help="how many; the first has the workload's name")
    made.add_argument("--instances", type=int, default=1, help="of each model")
    return made


def model_names(workload: str, count: int) -> list[str]:
    """Return the names of the models that a server has."""
    return [workload, *(f"{workload}_{number}" for number in range(1, count))]


def ready_paths(models: Sequence[str]) -> list[str]:
    """Return the paths to which a KServe server responds when its models are ready."""
    return [f"/v2/models/{model}/ready" for model in models]


def serve(port: int, ready: Sequence[str], start: Callable[[], tuple[int, Callable[[], object]]]) -> None:
    """Start a server, report, wait, and stop it.

    Args:
        port: its port for HTTP.
        ready: paths that respond when it is ready.
        start: starts it, and returns its process's id and a function that stops it.
    """
    stream = _report_stream()
    started = time.perf_counter()
    pid, stop = start()
    for path in ready:
        _wait_until_ready(port, path)
    _report(stream, "ready", started, pid)
    sys.stdin.read()
    started = time.perf_counter()
    stop()
    _report(stream, "stopped", started, pid)


def serve_command(
    port: int,
    ready: Sequence[str],
    command: Sequence[str],
    more_variables: Mapping[str, str] | None = None,
    end_signal: signal.Signals = signal.SIGTERM,
) -> None:
    """Serve with a command, which runs in the folder of this file.

    Args:
        port: its port for HTTP.
        ready: paths that respond when it is ready.
        command: the command.
        more_variables: environment variables in addition to those of this process.
        end_signal: the signal that stops it.
    """

    def start() -> tuple[int, Callable[[], object]]:
        server = subprocess.Popen(command, env={**os.environ, **(more_variables or {})}, cwd=_FOLDER)

        def stop() -> None:
            server.send_signal(end_signal)
            server.wait()

        return server.pid, stop

    serve(port, ready, start)


def _report_stream() -> TextIO:
    """Reserve stdout for the report: whatever a server prints goes to stderr, from child processes too."""
    stream = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return stream


def _report(stream: TextIO, event: str, started: float, pid: int) -> None:
    print(json.dumps({"event": event, "seconds": time.perf_counter() - started, "pid": pid}), file=stream, flush=True)


def _wait_until_ready(port: int, path: str) -> None:
    """Send requests to the server itself, so that ready means the same whatever a library waits for."""
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            if connection.getresponse().status == http.client.OK:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.005)
