"""The environment in which the package is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytriton


def _install(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def _import_pytriton(*folders: Path) -> subprocess.CompletedProcess[str]:
    """Import the package under test in an interpreter that finds these folders' distributions first."""
    paths = [str(folder) for folder in folders]
    code = f"import sys; sys.path[:0] = {paths!r}; import pytriton; print(pytriton.__version__)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_the_version_is_that_of_the_installed_distribution(tmp_path: Path) -> None:
    _install(tmp_path, "pytriton", "1.2.3")
    assert _import_pytriton(tmp_path).stdout == "1.2.3\n"
    assert pytriton.__version__.split(".")[0].isdigit()


def test_nvidia_pytriton_in_the_same_environment_is_refused_with_the_remedy(tmp_path: Path) -> None:
    _install(tmp_path, "pytriton", "1.2.3")
    _install(tmp_path, "nvidia-pytriton", "0.7.0")
    done = _import_pytriton(tmp_path)
    assert done.returncode != 0
    message = done.stderr.strip().splitlines()[-1]
    assert message.startswith("ImportError: nvidia-pytriton 0.7.0 and pytriton 1.2.3 are both installed in")
    assert str(tmp_path) in message
    assert "`pip uninstall -y nvidia-pytriton pytriton`, then install pytriton again" in message


def test_nvidia_pytriton_in_another_folder_is_no_conflict(tmp_path: Path) -> None:
    _install(tmp_path / "ours", "pytriton", "1.2.3")
    _install(tmp_path / "theirs", "nvidia-pytriton", "0.7.0")
    assert _import_pytriton(tmp_path / "ours", tmp_path / "theirs").stdout == "1.2.3\n"
