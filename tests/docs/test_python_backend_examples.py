"""The examples of model repositories run as their READMEs say."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python_backend"
FREE_PORTS = {f"PYTRITON_TRITON_CONFIG_{name}_PORT": "0" for name in ("HTTP", "GRPC", "METRICS")}


def line_with(lines: Iterable[str], pattern: str) -> re.Match[str]:
    """Reads lines until one that the pattern fits."""
    seen = []
    for line in lines:
        seen.append(line)
        match = re.search(pattern, line)
        if match is not None:
            return match
    raise AssertionError("".join(seen))


@contextlib.contextmanager
def served(example: Path, folder: Path) -> Iterator[dict[str, str]]:
    """Serves an example's repository; gives host and port by protocol."""
    command = [sys.executable, "-u", "-m", "pytriton", "serve", str(example / "models")]
    process = subprocess.Popen(
        command,
        cwd=folder,  # not the repository, whose package is not the installed one
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **FREE_PORTS},
    )
    assert process.stdout is not None
    try:
        url = line_with(process.stdout, r"http://(127\.0\.0\.1:\d+), grpc://(127\.0\.0\.1:\d+)")
        yield {"http": url[1], "grpc": url[2]}
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def requested(example: str, url: str) -> list[str]:
    """The lines that an example's client prints."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example / "client.py"), "--url", url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def shown(example: str) -> list[str]:
    """The lines that an example's README shows last."""
    blocks = re.findall(r"```text\n(.*?)```", (EXAMPLES / example / "README.md").read_text(), re.DOTALL)
    return list(blocks[-1].splitlines())


def test_add_sub(tmp_path: Path) -> None:
    with served(EXAMPLES / "add_sub", tmp_path) as urls:
        assert requested("add_sub", urls["http"]) == shown("add_sub")


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_pytorch(tmp_path: Path) -> None:
    with served(EXAMPLES / "pytorch", tmp_path) as urls:
        assert requested("pytorch", urls["http"]) == shown("add_sub")


def test_decoupled(tmp_path: Path) -> None:
    with served(EXAMPLES / "decoupled", tmp_path) as urls:
        lines = requested("decoupled", urls["grpc"])
    for model in ("repeat", "countdown"):
        assert [line for line in lines if line.startswith(model)] == [
            line for line in shown("decoupled") if line.startswith(model)
        ]


def test_bls(tmp_path: Path) -> None:
    with served(EXAMPLES / "bls", tmp_path) as urls:
        assert requested("bls", urls["http"]) == shown("bls")


@pytest.mark.slow
def test_custom_environment(tmp_path: Path) -> None:
    example = tmp_path / "custom_environment"
    shutil.copytree(EXAMPLES / "custom_environment", example, symlinks=True)
    subprocess.run([sys.executable, str(example / "make_environment.py")], check=True)
    with served(example, tmp_path) as urls:
        client, *models = requested("custom_environment", urls["http"])
    theirs = re.search("NumPy (.+)", client)
    assert theirs is not None
    for line, expected in zip(models, shown("custom_environment")[1:], strict=True):
        found = re.fullmatch(r"(\w+): Python (\S+), NumPy (\S+), mpmath 1.3.0: (.+)", line)
        assert found is not None, line
        assert found[2] == platform.python_version()
        assert f"numpy=={found[3]} " in (example / "requirements.txt").read_text()
        assert found[3] != theirs[1]
        assert (found[1], found[4]) == (expected.split(":")[0], expected.rsplit(": ")[-1])


@pytest.mark.parametrize("example", ["add_sub", "pytorch", "decoupled", "bls", "custom_environment"])
def test_the_overview_leads_to_each_example(example: str) -> None:
    assert f"({example}/README.md)" in (EXAMPLES / "README.md").read_text()
    assert (EXAMPLES / example / "README.md").exists()
