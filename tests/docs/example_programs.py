"""Runs the programs of the examples."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FREE_PORTS = {f"PYTRITON_TRITON_CONFIG_{name}_PORT": "0" for name in ("HTTP", "GRPC", "METRICS")}


def run(*command: str | Path, folder: Path = ROOT) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=folder,
        env={**os.environ, **FREE_PORTS},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextlib.contextmanager
def running(*command: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A program, which is ended by Ctrl-C."""
    process = subprocess.Popen(
        [sys.executable, "-u", *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, **FREE_PORTS},
    )
    try:
        yield process
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def line_with(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Reads the program's output until a line that the pattern fits."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        match = re.search(pattern, line)
        if match is not None:
            return match
    raise AssertionError("".join(seen))
