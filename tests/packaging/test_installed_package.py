"""The installed package: server and backend are in place, and run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pytriton
from pytriton.triton import TRITONSERVER_DIST_DIR
from pytriton.utils.distribution import get_root_module_path

BACKENDS = ["backends/pytriton/libtriton_pytriton.so", "backends/python/libtriton_python.so"]


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


def test_programs_that_start_the_server_themselves_find_it() -> None:
    assert get_root_module_path() / "tritonserver" == TRITONSERVER_DIST_DIR
    assert _installed("bin/tritonserver") == TRITONSERVER_DIST_DIR / "bin" / "tritonserver"


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


def test_only_libraries_that_the_server_loads_are_shipped() -> None:
    loaded = _run("/usr/bin/env", "ldd", _installed("bin/tritonserver"))
    assert [path.name for path in _installed("lib").iterdir() if path.name not in loaded] == []


def test_neither_libpython_nor_the_python_backend_is_shipped() -> None:
    assert not list(_installed("lib").glob("libpython*"))
    assert not list(_installed("backends").rglob("*stub*"))
    assert not list(_installed("backends").rglob("*.whl"))


def test_the_backend_is_installed_under_two_names() -> None:
    assert sorted(path.name for path in _installed("backends").iterdir()) == ["python", "pytriton"]
    libraries = [_installed(library) for library in BACKENDS]
    assert len({library.read_bytes() for library in libraries}) == 1


def test_the_python_backend_includes_all_that_its_processes_need() -> None:
    folder = _installed("backends/python")
    assert os.access(folder / "pytriton-launch", os.X_OK)
    load = "import pytriton.proxy.worker.process_main, pytriton.python_backend.loader as loader; print(loader.__file__)"
    package = f"package = types.ModuleType('pytriton'); package.__path__ = [{str(folder / 'pytriton')!r}]"
    code = f"import types; {package}; sys.modules['pytriton'] = package; {load}"
    # Of this environment, it is given nothing but NumPy.
    bare = "import importlib.abc, sys; sys.path = [*sys.path, {numpy!r}]; "
    finder = (
        "class NumpyAlone(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name.partition('.')[0] in ('zmq', 'tritonclient', 'wrapt'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, NumpyAlone())\n"
    )
    numpy = str(Path(importlib.util.find_spec("numpy").origin).parents[1])  # type: ignore[union-attr, arg-type]
    said = _run(sys.executable, "-I", "-S", "-c", bare.format(numpy=numpy) + "\n" + finder + code)
    assert said.strip() == str(folder / "pytriton/python_backend/loader.py")


@pytest.mark.parametrize("library", BACKENDS)
def test_the_backend_includes_its_own_cxx_runtime(library: str) -> None:
    libraries = _run("/usr/bin/env", "ldd", _installed(library))
    assert "libstdc++" not in libraries
    assert "libgcc_s" not in libraries
    assert "libpython" not in libraries


@pytest.mark.parametrize("library", BACKENDS)
def test_the_backend_exports_what_triton_looks_up_and_nothing_else(library: str) -> None:
    symbols = _run("/usr/bin/env", "nm", "-D", "--defined-only", _installed(library))
    names = {line.split()[-1] for line in symbols.splitlines()}
    assert "TRITONBACKEND_ModelInstanceExecute" in names
    assert {name for name in names if not name.startswith("TRITONBACKEND_")} == set()


@pytest.mark.parametrize("name", ["nvidia-pytriton/LICENSE", "triton-inference-server/LICENSE", "NOTICE.txt"])
def test_the_licences_are_included(name: str) -> None:
    assert _installed("licenses").joinpath(name).read_text()


def test_the_package_is_typed() -> None:
    assert any(Path(folder, "py.typed").is_file() for folder in pytriton.__path__)
