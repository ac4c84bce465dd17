"""``pytriton check`` with the real server."""

from __future__ import annotations

import subprocess
import sys
import zipfile


def check(folder, *words):
    command = [sys.executable, "-m", "pytriton.check", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_it_tests_both_protocols_and_saves_a_bug_report(tmp_path):
    file = tmp_path / "report.zip"
    checked = check(tmp_path, "--zip", str(file))
    assert checked.returncode == 0, checked.stderr
    lines = dict(line.split(None, 1) for line in checked.stdout.splitlines())
    assert lines["Start"].startswith("the server serves a model after")
    for protocol in ("HTTP", "gRPC"):
        assert lines[protocol].startswith("a request takes")

    with zipfile.ZipFile(file) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert texts["check.txt"] == checked.stdout
    assert "numpy==" in texts["packages.txt"]
    assert "successfully loaded 'Check'" in texts["server.log"]
    assert "access-token" not in texts["server.log"], "the token is not for a bug report"
