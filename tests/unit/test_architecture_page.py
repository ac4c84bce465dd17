"""docs/architecture.md names what there is: the packages, and the modules of both halves of the proxy."""

from __future__ import annotations

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "pytriton"
PROXY = PACKAGE / "proxy"
BACKEND = PROXY / "backend"
# The words of names and paths in backticks, such as "base" and "json" of `base/json`.
NAMED = {
    word
    for name in re.findall(r"`+\**([\w/.]+)\**`+", (ROOT / "docs" / "architecture.md").read_text())
    for word in re.split(r"[/.]", name)
}

PACKAGES = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
PYTHON = {path.stem for path in PROXY.rglob("*.py")}
CPP = {path.stem for path in BACKEND.rglob("*") if path.suffix in (".h", ".cc")}
# Of the package itself, and entry points of programs that are named by their folder.
UNNAMED = {"__init__", "__main__", "main", "_environment", "check", "constants", "exceptions", "run_options"}


@pytest.mark.parametrize("module", sorted((PACKAGES | PYTHON | CPP) - UNNAMED))
def test_the_page_names_every_module(module):
    assert module in NAMED


def test_everything_that_need_not_be_named_exists():
    assert UNNAMED <= PACKAGES | PYTHON | CPP
