"""Fetching the bundled server: its source, its files, and errors."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).parents[2]


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_lays_out_the_server_without_what_only_the_python_backend_needs(
    fetch_server: ModuleType, published: Path, tmp_path: Path
) -> None:
    fetch_server.fetch(tmp_path / "server")
    assert _files(tmp_path / "server") == {
        "bin/tritonserver",
        "caches/local/libtritoncache_local.so",
        "lib/libtritonserver-717102f0.so",
        "licenses/nvidia-pytriton/LICENSE",
        "TRITON_VERSION",
    }


def test_makes_the_server_executable(fetch_server: ModuleType, published: Path, tmp_path: Path) -> None:
    fetch_server.fetch(tmp_path / "server")
    assert os.access(tmp_path / "server" / "bin" / "tritonserver", os.X_OK)


def test_raises_the_transfer_size_of_the_server(fetch_server: ModuleType, published: Path, tmp_path: Path) -> None:
    fetch_server.fetch(tmp_path / "server")
    assert (tmp_path / "server" / "bin" / "tritonserver").read_bytes() == b"\x7fELF+published"


def test_removes_files_of_an_earlier_version(fetch_server: ModuleType, published: Path, tmp_path: Path) -> None:
    leftover = tmp_path / "server" / "lib" / "libold.so"
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    fetch_server.fetch(tmp_path / "server")
    assert not leftover.exists()


def test_keeps_the_wheel_in_the_cache_and_fetches_nothing_again(
    fetch_server: ModuleType,
    published: Path,
    no_registry: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetch_server.fetch(tmp_path / "first")
    assert _files(no_registry / "pytriton") == {fetch_server.WHEEL}

    monkeypatch.delenv("PIP_FIND_LINKS")
    fetch_server.fetch(tmp_path / "second")
    assert _files(tmp_path / "second") == _files(tmp_path / "first")


def test_a_rebuild_in_the_same_folder_needs_neither_cache_nor_registry(
    fetch_server: ModuleType, published: Path, no_registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch_server.fetch(tmp_path / "server")
    monkeypatch.delenv("PIP_FIND_LINKS")
    (no_registry / "pytriton" / fetch_server.WHEEL).unlink()
    fetch_server.fetch(tmp_path / "server")


def test_an_interrupted_extraction_is_repeated(
    fetch_server: ModuleType, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as interrupted, pytest.raises(KeyboardInterrupt):
        interrupted.setattr(fetch_server.shutil, "copyfileobj", _interrupt)
        fetch_server.fetch(tmp_path / "server")
    fetch_server.fetch(tmp_path / "server")
    assert (tmp_path / "server" / "bin" / "tritonserver").read_bytes() == b"\x7fELF+published"


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_damaged_cache_is_fetched_again(
    fetch_server: ModuleType, published: Path, no_registry: Path, tmp_path: Path
) -> None:
    cached = no_registry / "pytriton" / fetch_server.WHEEL
    cached.parent.mkdir(parents=True)
    cached.write_bytes(published.read_bytes()[:-1])
    fetch_server.fetch(tmp_path / "server")
    assert cached.read_bytes() == published.read_bytes()


def test_an_unusable_cache_folder_does_not_stop_the_build(
    fetch_server: ModuleType, published: Path, no_registry: Path, tmp_path: Path
) -> None:
    no_registry.write_text("a file where the folder should be")
    fetch_server.fetch(tmp_path / "build" / "server")
    assert (tmp_path / "build" / fetch_server.WHEEL).is_file()


def test_a_download_with_the_wrong_hash_names_both_hashes_and_is_not_kept(
    fetch_server: ModuleType, wheel: Path, no_registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    with pytest.raises(fetch_server.FetchError) as error:
        fetch_server.fetch(tmp_path / "server")
    assert fetch_server.SHA256 in str(error.value)
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in str(error.value)
    assert "the package registry" in str(error.value)
    assert _files(no_registry) == set()
    assert not (tmp_path / "server").exists()


def test_a_local_wheel_serves_a_build_without_a_registry(
    fetch_server: ModuleType, published: Path, no_registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PYTRITON_SERVER_WHEEL", str(published))
    fetch_server.fetch(tmp_path / "server")
    assert not no_registry.exists()


def test_a_missing_local_wheel_is_named(
    fetch_server: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTRITON_SERVER_WHEEL", "/no/such.whl")
    with pytest.raises(
        fetch_server.FetchError, match=r"PYTRITON_SERVER_WHEEL names /no/such\.whl, which is not a file"
    ):
        fetch_server.fetch(tmp_path / "server")


def test_a_local_wheel_with_the_wrong_hash_is_named(
    fetch_server: ModuleType, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTRITON_SERVER_WHEEL", str(wheel))
    with pytest.raises(
        fetch_server.FetchError, match=f"from {wheel} has the SHA-256 .* {fetch_server.SHA256} is expected"
    ):
        fetch_server.fetch(tmp_path / "server")


def test_an_unreachable_registry_is_reported_in_one_sentence_with_the_remedy(tmp_path: Path) -> None:
    script = REPOSITORY / "build_tools" / "fetch_server.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path / "server"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "could not be fetched with `pip download nvidia-pytriton==0.7.0`" in done.stderr
    assert "build with PYTRITON_SERVER_WHEEL=/path/to/nvidia_pytriton-0.7.0-" in done.stderr


@pytest.mark.parametrize("libc", ["glibc 2.35", "glibc 2.36", "glibc 3.0", "glibc 2.41.9000"])
def test_a_recent_glibc_is_accepted(fetch_server: ModuleType, libc: str) -> None:
    fetch_server.check_platform(libc)


@pytest.mark.parametrize(("libc", "named"), [("glibc 2.34", "glibc 2.34"), (None, "another C library")])
def test_an_old_glibc_or_another_c_library_is_refused(fetch_server: ModuleType, libc: str | None, named: str) -> None:
    with pytest.raises(fetch_server.FetchError, match=rf"needs glibc 2\.35 or later .* this system has {named}"):
        fetch_server.check_platform(libc)


def test_the_server_is_left_as_published_on_request(published: Path, fetch_server: ModuleType, tmp_path: Path) -> None:
    fetch_server.fetch(tmp_path / "server", tune=False)
    assert (tmp_path / "server" / "bin" / "tritonserver").read_bytes() == b"\x7fELF published"

    fetch_server.fetch(tmp_path / "server")
    assert (tmp_path / "server" / "bin" / "tritonserver").read_bytes() != b"\x7fELF published"
