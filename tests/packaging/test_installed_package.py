"""The installed package: the server and the backend are in their places and run by themselves."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import pytriton


def _installed(name: str) -> Path:
    # An editable install has two folders: the sources, and what the build laid into site-packages.
    found = [path for folder in pytriton.__path__ if (path := Path(folder, "tritonserver", name)).exists()]
    assert found, f"tritonserver/{name} is in none of {list(pytriton.__path__)}: install the package"
    return found[0]


def _run(*command: str | Path) -> str:
    """What the command prints in an empty environment."""
    return subprocess.run(command, env={}, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize("name", ["bin/tritonserver", "bin/pytriton-launch"])
def test_the_programs_are_executable(name: str) -> None:
    assert os.access(_installed(name), os.X_OK)


def test_the_server_runs_with_its_cache_and_without_any_environment_variable(tmp_path: Path) -> None:
    options = [f"--model-repository={tmp_path}", "--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"]
    options += [f"--cache-directory={_installed('caches')}", "--cache-config=local,size=1048576"]
    command = [str(_installed("bin/tritonserver")), *options]
    log = []
    with subprocess.Popen(command, env={}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        for line in server.stdout:
            log.append(line)
            if "model_repository_path" in line:  # one of the options that the server lists once it is up
                server.kill()
    assert any("model_repository_path" in line for line in log), "".join(log)
    assert any("Creating TritonCache with name: 'local'" in line for line in log), "".join(log)


def test_the_server_finds_all_its_libraries() -> None:
    assert "not found" not in _run("/usr/bin/env", "ldd", _installed("bin/tritonserver"))


def test_no_library_is_shipped_that_the_server_does_not_load() -> None:
    loaded = _run("/usr/bin/env", "ldd", _installed("bin/tritonserver"))
    assert [path.name for path in _installed("lib").iterdir() if path.name not in loaded] == []


def test_neither_libpython_nor_the_python_backend_is_shipped() -> None:
    assert not list(_installed("lib").glob("libpython*"))
    assert [path.name for path in _installed("backends").iterdir()] == ["pytriton"]


def test_the_backend_brings_its_own_cxx_runtime() -> None:
    libraries = _run("/usr/bin/env", "ldd", _installed("backends/pytriton/libtriton_pytriton.so"))
    assert "libstdc++" not in libraries
    assert "libgcc_s" not in libraries
    assert "libpython" not in libraries


def test_the_backend_exports_what_triton_looks_up_and_nothing_else() -> None:
    symbols = _run("/usr/bin/env", "nm", "-D", "--defined-only", _installed("backends/pytriton/libtriton_pytriton.so"))
    names = {line.split()[-1] for line in symbols.splitlines()}
    assert "TRITONBACKEND_ModelInstanceExecute" in names
    assert {name for name in names if not name.startswith("TRITONBACKEND_")} == set()


@pytest.mark.parametrize("name", ["nvidia-pytriton/LICENSE", "triton-inference-server/LICENSE", "NOTICE.txt"])
def test_the_licences_go_along(name: str) -> None:
    assert _installed("licenses").joinpath(name).read_text()


def test_the_package_is_typed() -> None:
    assert any(Path(folder, "py.typed").is_file() for folder in pytriton.__path__)
