"""The unit of systemd."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from manifests import DEPLOY, KILL_S, SPARE_S, Pod

from pytriton.server.config import TritonConfig

UNIT = DEPLOY / "systemd" / "pytriton.service"


def settings(name: str) -> list[str]:
    """The values of a setting, in order."""
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def setting(name: str) -> str:
    """The one value of a setting."""
    (value,) = settings(name)
    return value


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed, which checks units")
    program = shlex.split(setting("ExecStart"))[0]
    installed = tmp_path / UNIT.name  # with a program that exists here
    installed.write_text(UNIT.read_text().replace(program, str(Path(sys.executable).with_name("pytriton"))))
    done = subprocess.run(["systemd-analyze", "verify", installed], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    wrong = tmp_path / "wrong.service"
    wrong.write_text(installed.read_text().replace("KillMode=", "KillMod="))
    said = subprocess.run(["systemd-analyze", "verify", wrong], capture_output=True, text=True, check=False).stderr
    assert "KillMod" in said


def test_runs_the_command_of_the_pods() -> None:  # which other tests run
    program, *arguments = shlex.split(setting("ExecStart"))
    assert program == "/opt/pytriton/bin/pytriton"
    assert ["pytriton", *arguments] == Pod.of("base").container["args"]


def test_variables_are_settings_of_triton(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for line in settings("Environment"):
        for assignment in shlex.split(line):
            monkeypatch.setenv(*assignment.split("=", 1))
    config = TritonConfig.from_env()
    assert not caplog.records
    assert config.exit_timeout_secs is not None
    # The gateway's requests first, then those of the server's own ports.
    stop_s = 2 * config.exit_timeout_secs + (config.drain_secs or 0) + KILL_S
    assert int(setting("TimeoutStopSec")) >= stop_s + SPARE_S


def test_only_the_program_itself_gets_the_signal() -> None:
    # It stops the server and its workers when requests have ended; systemd kills what is left.
    assert setting("KillMode") == "mixed"
    assert not settings("KillSignal")  # SIGTERM


def test_its_folders_are_writable_on_a_read_only_system() -> None:
    assert setting("ProtectSystem") == "strict"
    assert (setting("PrivateTmp"), setting("DynamicUser")) == ("yes", "yes")
    home = next(value.split("HOME=")[1].split()[0] for value in settings("Environment") if "HOME=" in value)
    assert home == f"/var/cache/{setting('CacheDirectory')}"


def test_exposes_little(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed, which rates units")
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", "--no-pager", UNIT]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"})
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot rate a unit that is not installed")
    assert done.returncode == 0, done.stdout[-1000:]
