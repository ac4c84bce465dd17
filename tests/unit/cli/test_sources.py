"""The source files of a program: which modules are its own, and which of them a change affects."""

from __future__ import annotations

import importlib
import sys

import pytest

from pytriton.cli.sources import Sources, without


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Writes a program's files, and imports its module ``app_of_test``; they are forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(**files):
        for name, content in files.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        importlib.import_module("app_of_test")
        return Sources(tmp_path)

    yield write
    for name in list(Sources(tmp_path).modules()):
        del sys.modules[name]


def package(tmp_path):
    (tmp_path / "package_of_test").mkdir()
    for name, content in {
        "__init__": "",
        "one": "from .deep.two import VALUE",
        "deep/__init__": "",
        "deep/two": "from ..three import VALUE",
        "three": "VALUE = 1",
        "four": "from . import three as other",
        "five": "import json",
    }.items():
        path = tmp_path / "package_of_test" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)


def test_modules_below_the_folder_belong_to_the_program_unlike_libraries(program, tmp_path):
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "library_of_test.py").write_text("")
    sources = program(app_of_test="import json\nsys = __import__('sys')\nimport helper_of_test", helper_of_test="")
    assert set(sources.modules()) == {"app_of_test", "helper_of_test"}
    assert not sources.holds(tmp_path / "site-packages" / "library_of_test.py")
    assert not sources.holds(tmp_path / ".venv" / "module.py")
    assert not sources.holds(tmp_path.parent / "module.py")
    assert not sources.holds(tmp_path / "text.txt")


def test_a_change_affects_all_modules_that_import_it_in_any_way(program, tmp_path):
    package(tmp_path)
    sources = program(app_of_test="from package_of_test import one, four, five")
    changed = {tmp_path / "package_of_test" / "three.py"}
    prefix = "package_of_test"
    assert sources.affected(changed) == {
        f"{prefix}.three",
        f"{prefix}.deep.two",
        f"{prefix}.one",
        f"{prefix}.four",
        "app_of_test",
    }


def test_a_change_of_a_package_affects_its_modules(program, tmp_path):
    package(tmp_path)
    sources = program(app_of_test="from package_of_test import one, four, five")
    affected = sources.affected({tmp_path / "package_of_test" / "deep" / "__init__.py"})
    assert "package_of_test.deep.two" in affected
    assert "package_of_test.five" not in affected
    assert "package_of_test.three" not in affected


def test_forgotten_modules_are_imported_again(program):
    sources = program(app_of_test="import helper_of_test", helper_of_test="")
    app, helper = sys.modules["app_of_test"], sys.modules["helper_of_test"]
    with without({"app_of_test"}, sources):
        importlib.import_module("app_of_test")
    assert sys.modules["app_of_test"] is not app
    assert sys.modules["helper_of_test"] is helper


def test_an_error_restores_all_modules(program, tmp_path):
    package(tmp_path)
    sources = program(app_of_test="import package_of_test.five")
    before = sources.modules()
    (tmp_path / "new_of_test.py").write_text("")
    (tmp_path / "app_of_test.py").write_text("import new_of_test, package_of_test.five\n1 / 0")

    with pytest.raises(ZeroDivisionError), without({"app_of_test", "package_of_test.five"}, sources):
        importlib.import_module("app_of_test")

    assert sources.modules() == before
    assert sys.modules["package_of_test"].five is before["package_of_test.five"]
