"""Scripts like those of users, under mypy and pyright."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys

import pytest

SCRIPTS = pathlib.Path(__file__).parent / "scripts"
WRONG = re.compile(r"# wrong: ")


def run(*command, cwd):
    return subprocess.run([sys.executable, "-m", *command], cwd=cwd, capture_output=True, text=True, timeout=110)


def lines_of_mypy(folder):
    done = run(
        "mypy", "--strict", "--no-incremental", "--no-error-summary", *map(str, SCRIPTS.glob("*.py")), cwd=folder
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"(\w+\.py):(\d+): (?:error|note): (.*)", done.stdout)
    return {(script, int(line)): text for script, line, text in found}


def lines_of_pyright(folder):
    done = run("pyright", "--outputjson", "--pythonpath", sys.executable, *map(str, SCRIPTS.glob("*.py")), cwd=folder)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return {
        (pathlib.Path(each["file"]).name, each["range"]["start"]["line"] + 1): each["message"]
        for each in json.loads(done.stdout)["generalDiagnostics"]
    }


@pytest.mark.parametrize("check", [lines_of_mypy, lines_of_pyright])
def test_only_mistakes_are_reported(check, tmp_path):
    wrong = {
        (script.name, number)
        for script in SCRIPTS.glob("*.py")
        for number, line in enumerate(script.read_text().splitlines(), start=1)
        if WRONG.search(line)
    }
    assert len(wrong) == 5
    found = check(tmp_path)
    assert set(found) == wrong, found
