"""Scripts for nvidia-pytriton run unchanged, and print what they printed there.

The texts beside the scripts were recorded with nvidia-pytriton 0.7.0.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from serving import free_ports

FOLDER = pathlib.Path(__file__).parent / "nvidia_pytriton_scripts"
TIMEOUT_S = 90


@pytest.mark.parametrize("name", ["identity", "add_sub", "remote"])
def test_a_script_has_the_same_output(name, tmp_path):
    ports = dict(zip(("http", "grpc", "metrics"), map(str, free_ports(3)), strict=True))
    flags = [part for each, port in ports.items() for part in (f"--{each}-port", port)]
    arguments = flags if name == "identity" else list(ports.values())
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        cwd=tmp_path,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == (FOLDER / f"{name}.txt").read_text()
