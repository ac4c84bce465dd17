"""Errors of the build, in one sentence each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).parents[2]


def _tool(name: str) -> str:
    # The extra `test` installs both as packages, beside the interpreter, which need not be on PATH.
    path = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    assert path is not None, f"{name} is not installed: install the package with its extra `test`"
    return path


def _configure(folder: Path, *options: str, **environment: str) -> str:
    """Configure the project, which must fail; returns what CMake said, its line breaks undone."""
    command = [_tool("cmake"), "-S", str(REPOSITORY), "-B", str(folder / "build"), "-G", "Ninja"]
    command += [f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}", f"-DPython_EXECUTABLE={sys.executable}", *options]
    env = {name: value for name, value in os.environ.items() if name != "CXX"} | environment
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0, done.stdout
    return " ".join(done.stderr.split())


def test_another_operating_system_is_refused_by_name(tmp_path: Path) -> None:
    said = _configure(tmp_path, "-DCMAKE_SYSTEM_NAME=FreeBSD", "-DCMAKE_SYSTEM_PROCESSOR=x86_64")
    assert "pytriton runs on Linux x86-64 and this is FreeBSD x86_64" in said


def test_another_processor_is_refused_by_name(tmp_path: Path) -> None:
    said = _configure(tmp_path, "-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64")
    assert "pytriton bundles a Triton server for Linux x86-64 and this is Linux aarch64" in said


def test_a_missing_compiler_is_reported_with_what_to_install(tmp_path: Path) -> None:
    nowhere = tmp_path / "empty"
    nowhere.mkdir()
    # CMake looks beyond PATH, in /usr/bin among others; the option turns that off, as if nothing were there.
    said = _configure(tmp_path, "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF", PATH=str(nowhere))
    assert "needs a C++17 compiler and found none (looked for: c++, g++, clang++" in said
    assert "`apt-get install g++`" in said


def test_a_missing_compiler_in_cxx_is_named(tmp_path: Path) -> None:
    said = _configure(tmp_path, CXX="/no/such/c++ -m64")
    assert "found none (looked for: /no/such/c++)" in said


def test_an_unreachable_registry_is_reported_by_cmake(tmp_path: Path) -> None:
    said = _configure(tmp_path)
    assert "The Triton server could not be fetched" in said
    assert "PYTRITON_SERVER_WHEEL=/path/to/nvidia_pytriton-0.7.0-" in said


def test_a_wrong_hash_is_reported_by_cmake(tmp_path: Path, wheel: Path, fetch_server: ModuleType) -> None:
    said = _configure(tmp_path, PYTRITON_SERVER_WHEEL=str(wheel))
    assert f"where {fetch_server.SHA256} is expected" in said
