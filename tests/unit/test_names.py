"""The public names of nvidia-pytriton 0.7.0: all are here, or in the table of the documentation with a reason."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "build_tools"))

from list_interface import parameters  # noqa: E402

LISTED = json.loads((Path(__file__).parent / "names_0_7_0.json").read_text())
PAGE = (ROOT / "docs" / "names_of_nvidia_pytriton.md").read_text()
IMPORTED_FROM = (
    "pytriton.client.exceptions",
    "pytriton.client.warnings",
    "pytriton.decorators",
    "pytriton.exceptions",
    "pytriton.model_config",
)
DOCUMENTED = re.findall(r"^\| `([\w.]+)` \|", PAGE, re.MULTILINE)


def differences():
    """The names that are not here, or have other parameters or bases."""
    for module_name, names in LISTED.items():
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            yield module_name
            continue
        for name, listed in names.items():
            if "from" not in listed:  # it is that module's own
                yield from differences_of(f"{module_name}.{name}", getattr(module, name, None), listed)


def differences_of(name, found, listed):
    if found is None:
        yield name
    elif listed["kind"] == "function":
        if not takes(found, listed["parameters"]):
            yield name
    elif listed["kind"] == "class":
        if not set(listed["bases"]) <= {base.__name__ for base in inspect.getmro(found)}:
            yield name
        for member, names in listed["members"].items():
            is_field = member in getattr(found, "__dataclass_fields__", {})
            if not (is_field or hasattr(found, member)) or not takes(getattr(found, member, None), names):
                yield f"{name}.{member}"


def takes(function, names):
    """Whether a function has parameters of these names."""
    own = parameters(function) if names is not None and callable(function) else None
    return own is None or set(names) <= set(own)


def covered_by(name, documented):
    return name == documented or name.startswith(f"{documented}.")


def imported():
    """The errors and settings that a module has from another one, with that module."""
    for module_name, names in LISTED.items():
        for name, listed in names.items():
            origin = listed.get("from", "")
            differs = any(covered_by(each, other) for each in (module_name, f"{origin}.{name}") for other in DOCUMENTED)
            if origin.startswith(IMPORTED_FROM) and not differs:
                yield module_name, name, origin


@pytest.mark.parametrize(("module_name", "name", "origin"), list(imported()))
def test_errors_and_settings_can_be_imported_from_modules_that_use_them(module_name, name, origin):
    assert getattr(importlib.import_module(module_name), name) is getattr(importlib.import_module(origin), name)


@pytest.mark.parametrize("name", sorted(differences()))
def test_each_difference_has_a_reason(name):
    assert any(covered_by(name, each) for each in DOCUMENTED)


@pytest.mark.parametrize("documented", DOCUMENTED)
def test_names_in_the_table_are_missing_or_different(documented):
    assert any(covered_by(name, documented) for name in differences())


def test_the_list_covers_the_whole_package():
    assert len(LISTED) > 30
    assert sum(map(len, LISTED.values())) > 300
    assert sorted(DOCUMENTED) == DOCUMENTED
