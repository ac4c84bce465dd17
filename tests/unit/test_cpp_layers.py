"""The C++ half has the layers of docs/architecture.md: a file includes only files of its layer or of those below."""

from __future__ import annotations

import pathlib
import re

import pytest

BACKEND = pathlib.Path(__file__).parents[2] / "pytriton" / "proxy" / "backend"

# From the bottom to the top; "" are the entry points beside the folders.
LAYERS = [
    "base",
    "cuda",
    "wire",
    "transport",
    "triton",
    "triton/workarounds",
    "services",
    "python_models",
    "model_instance",
    "",
]
# Programs and libraries of their own, and the folders from which they include besides their own.
PROGRAMS = {"launcher": {"base"}, "guard": {"guard", "base", "triton"}, "spin": set()}

FILES = sorted(path.relative_to(BACKEND) for path in BACKEND.rglob("*") if path.suffix in (".h", ".cc"))


def included(path):
    return [pathlib.PurePath(name) for name in re.findall(r'^#include "([^"]+)"', (BACKEND / path).read_text(), re.M)]


def layer(path):
    folder = path.parent.as_posix()
    return LAYERS.index("" if folder == "." else folder)


def test_every_folder_is_a_layer():
    folders = {path.parent.as_posix() for path in FILES} - {"."}
    assert folders == set(LAYERS) - {""} | set(PROGRAMS)


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_file_includes_only_from_its_own_layer_or_from_those_below(path):
    if path.parent.as_posix() in PROGRAMS:
        assert {each.parent.as_posix() for each in included(path)} <= PROGRAMS[path.parent.as_posix()]
        return
    above = [str(each) for each in included(path) if layer(each) > layer(path)]
    assert not above, f"{path} includes {above} from a layer above its own"


def test_headers_have_no_circular_includes():
    headers = {path: set(included(path)) for path in FILES if path.suffix == ".h"}
    while free := {path for path, needed in headers.items() if not needed & headers.keys()}:
        for path in free:
            del headers[path]
    assert not headers, f"these headers include each other: {sorted(map(str, headers))}"
