"""Tensors in the memory of a GPU, from functions to other models and back, on the real server.

The driver of the GPU is a stand-in, `fake_cuda.cc`, in programs of their own; `tests/gpu` does the same on a real one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "gpu_programs"


@pytest.fixture(scope="session")
def driver_folder(native: Any) -> Path:
    """The folder of the stand-in."""
    (library,) = native.build("fake_cuda")
    return Path(library).parent


def run(driver_folder: Path, name: str, **environment: str) -> list[str]:
    """The lines that a program prints, once it has succeeded."""
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / f"{name}.py")],
        env={**os.environ, "LD_LIBRARY_PATH": str(driver_folder), **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("behavior_of", ["driver", "page_locks", "gpu_tensor", "failing", "repository"])
def test_programs_run_on_a_stand_in_for_a_gpu(driver_folder: Path, behavior_of: str) -> None:
    assert run(driver_folder, behavior_of)[-1] == "passed"


@pytest.mark.parametrize(
    ("settings", "is_locked"), [({}, True), ({"PYTRITON_PAGE_LOCKS": "0"}, False)], ids=["locked", "not locked"]
)
def test_functions_serve_tensors_and_the_environment_decides_on_page_locks(
    driver_folder: Path, settings: dict[str, str], is_locked: bool
) -> None:
    lines = run(driver_folder, "serving", **settings)
    assert lines[-1] == "passed"
    assert f"page-locked: {is_locked}" in lines


@pytest.mark.parametrize("reason", ["WITHOUT_IPC", "OPENS_NOTHING"])
def test_tensors_that_cannot_be_shared_go_through_memory(driver_folder: Path, reason: str) -> None:
    lines = run(driver_folder, "serving", **{f"FAKE_CUDA_{reason}": "1"})
    assert lines[-1] == "passed"
    assert "double got ndarray" in lines
    assert "double got GpuTensor" not in lines
