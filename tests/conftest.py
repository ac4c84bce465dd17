"""Fixtures of all tests: a clean environment, signals, and the number of workers."""

from __future__ import annotations

import gc
import os
import pathlib
import platform
import signal
import subprocess
import sys
import tempfile

import hypothesis
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # for peer_codecs.py

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("pytriton", deadline=None)
hypothesis.settings.load_profile("pytriton")

for name in list(os.environ):
    if name.startswith("PYTRITON_") and name != "PYTRITON_SERVER_PATH":  # which has the tests run with another server
        del os.environ[name]

# By default, an actor gets hardly any processor time while tests beside it compile.
os.environ.update(RAY_worker_niceness="0")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a background job; scripts that tests run would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two workers for each core: a test mostly waits for a server to start or to stop."""
    return 2 * len(os.sched_getaffinity(0))


def pytest_collection_finish() -> None:
    """Thousands of tests stay until the end; garbage collection need not go through them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def home():
    """Workspaces go here, not among the temporary files of others; its path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="pt-") as folder, pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTRITON_HOME", folder)
        yield pathlib.Path(folder)


@pytest.fixture
def grants_time_slices():
    """Skips the test if threads get no time slices on request, or the kernel does not show them."""
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
    state = pathlib.Path("/proc/self/sched")
    if release < (6, 12) or not state.exists() or "se.slice" not in state.read_text():
        pytest.skip("the kernel does not support requests for time slices, or does not show them")
    if os.getpriority(os.PRIO_PROCESS, 0):
        pytest.skip("threads with a nice value of their own are left alone")


@pytest.fixture
def own_home(monkeypatch):
    """A folder for the workspaces of one test."""
    with tempfile.TemporaryDirectory(prefix="pt-") as folder:
        monkeypatch.setenv("PYTRITON_HOME", folder)
        yield pathlib.Path(folder)


@pytest.fixture
def run_in_c_locale(tmp_path):
    """Runs Python code in the C locale, whose encoding is ASCII; returns its output."""

    def run(code, *arguments):
        return subprocess.run(
            [sys.executable, "-P", "-c", code, *arguments],
            env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            check=True,
            encoding="utf-8",
        ).stdout

    return run
