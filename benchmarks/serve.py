"""What the servers of all contenders share: how they are told what to serve, and what they report.

A server prints JSON lines on stdout: how many seconds getting ready took, and stopping. It serves until its standard
input closes, which also ends it when whoever started it dies.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

from workloads import WORKLOADS


def parser(description: str | None) -> argparse.ArgumentParser:
    """Take the arguments that every server is given."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--http-port", type=int, required=True)
    made.add_argument("--grpc-port", type=int, required=True)
    made.add_argument("--metrics-port", type=int, required=True)
    made.add_argument("--workload", choices=[*WORKLOADS, "stream"], default="tiny")
    made.add_argument("--models", type=int, default=1, help="how many; the first has the workload's name")
    made.add_argument("--instances", type=int, default=1, help="of each model")
    return made


def report_stream() -> TextIO:
    """Keep stdout for the report: whatever a server prints goes to stderr, from its own process too."""
    stream = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return stream


def report(stream: TextIO, event: str, started: float) -> None:
    """Say what has happened, and how many seconds it took since it started."""
    print(json.dumps({"event": event, "seconds": time.perf_counter() - started}), file=stream, flush=True)


def model_names(workload: str, count: int) -> list[str]:
    """Name the models that a server has."""
    return [workload, *(f"{workload}_{number}" for number in range(1, count))]


def wait_until_ready(port: int, path: str) -> None:
    """Ask the server itself, so that ready means the same whatever a library waits for."""
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


def serve(port: int, ready: list[str], start: Callable[[], Callable[[], object]]) -> None:
    """Start a server, report, wait, and stop it.

    Args:
        port: where it answers HTTP.
        ready: paths that answer when it is ready.
        start: starts it, and returns what stops it.
    """
    stream = report_stream()
    started = time.perf_counter()
    stop = start()
    for path in ready:
        wait_until_ready(port, path)
    report(stream, "ready", started)
    sys.stdin.read()
    started = time.perf_counter()
    stop()
    report(stream, "stopped", started)
