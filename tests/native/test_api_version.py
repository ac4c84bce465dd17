"""The installed backend in a server of another API version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pytriton


@pytest.fixture(scope="module")
def backend() -> Path:
    """The installed backend."""
    relative = Path("tritonserver", "backends", "pytriton", "libtriton_pytriton.so")
    found = [path for folder in pytriton.__path__ if (path := Path(folder) / relative).exists()]
    assert found, f"the package has no {relative}: install it, in place of importing it from its sources"
    return found[0]


@pytest.mark.parametrize(("major", "minor"), [(2, 0), (0, 9), (2, 51)])
def test_a_server_of_another_major_version_is_refused_by_both_versions(
    native: Any, backend: Path, major: int, minor: int
) -> None:
    (host,) = native.build("backend_host")
    done = native.run(host, str(backend), str(major), str(minor))
    assert done.returncode == 0, done.stdout
    assert done.stdout == (
        f"error 5: this server speaks version {major}.{minor} of Triton's backend API, the pytriton backend version "
        "1.x: use a Triton 2.x server, or a pytriton made for this one\n"
    )


@pytest.mark.parametrize("minor", [0, 19, 99])
def test_any_minor_version_is_accepted(native: Any, backend: Path, minor: int) -> None:
    (host,) = native.build("backend_host")
    done = native.run(host, str(backend), "1", str(minor))
    assert (done.returncode, done.stdout) == (0, "initialized\n")
