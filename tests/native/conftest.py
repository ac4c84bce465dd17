"""Fixtures of the native tests: programs and the library of this folder, built once per session."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


class Native:
    """Builds targets of CMakeLists.txt when they are first wanted, for all processes of a session."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder

    def build(self, *targets: str, folder_name: str | None = None) -> list[Path]:
        """Paths of the targets' files. Targets of different folders are built side by side."""
        folder = self._folder / (folder_name or targets[0])
        folder.mkdir(exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "build.ninja").exists():
                ninja = f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}"
                _succeed([_tool("cmake"), "-S", str(SOURCE), "-B", str(folder), "-G", "Ninja", ninja])
            _succeed([_tool("cmake"), "--build", str(folder), "--target", *targets])
        return [folder / target for target in targets]

    def run(self, program: Path, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a program; its standard error is in its standard output."""
        command = [str(program), *arguments]
        done = _run(command, folder)
        if done.returncode != 0 and "unexpected memory mapping" in done.stdout:
            # Some versions of ThreadSanitizer cannot live with as much randomness of addresses as newer kernels have.
            done = _run(["setarch", "--addr-no-randomize", *command], folder)
        return done


def _run(command: list[str], folder: Path | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=100,
        check=False,
    )


def _succeed(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout


def _tool(name: str) -> str:
    # The extra `test` installs both as packages, beside the interpreter, which need not be on PATH.
    path = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    assert path is not None, f"{name} is not installed: install the package with its extra `test`"
    return path


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Native:
    """Builds and runs what lies in this folder."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # which the session's processes share
    return Native(folder / "native")


@pytest.fixture(scope="session")
def library_path(native: Native) -> Path:
    """The C++ half of the messages and of the arena."""
    (target,) = native.build("pytriton_wire")
    return target.with_name("libpytriton_wire.so")


@pytest.fixture(scope="session")
def library(library_path: Path) -> ctypes.CDLL:
    """The same, loaded; its functions are in wire_library.cc and arena_library.cc."""
    library = ctypes.CDLL(str(library_path))
    integer, pointer, text = ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p
    signatures = {
        "wire_version": (integer, []),
        "wire_recode": (integer, [ctypes.c_int, text, integer, text, integer]),
        "wire_make": (integer, [ctypes.c_int, ctypes.c_uint64, integer, text, integer]),
        "wire_is_made": (ctypes.c_bool, [ctypes.c_int, ctypes.c_uint64, integer, text, integer]),
        "arena_new": (pointer, [integer]),
        "arena_delete": (None, [pointer]),
        "arena_fd": (ctypes.c_int, [pointer]),
        "arena_in_use": (integer, [pointer]),
        "arena_trim": (None, [pointer]),
        "arena_write": (integer, [pointer, integer, integer]),
        "peer_new": (pointer, [ctypes.c_int]),
        "peer_delete": (None, [pointer]),
        "peer_release": (None, [pointer, integer]),
        "peer_matches": (integer, [pointer, integer, integer, integer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first worker builds for all others, which takes minutes on a busy machine."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(900))
