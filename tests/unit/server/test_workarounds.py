"""The table of workarounds: it lists those of the code, and versions enable them."""

from __future__ import annotations

import pathlib
import re

import pytest

from pytriton.server.version import ServerVersion
from pytriton.server.workarounds import Workaround, needed

REPOSITORY = pathlib.Path(__file__).parents[3]
BUNDLED = ServerVersion(2, 51)
SOURCES = [
    path
    for folder in ("pytriton", "build_tools")
    for path in (REPOSITORY / folder).rglob("*")
    if path.suffix in (".py", ".cc", ".h") and "tritonserver" not in path.parts and path.name != "workarounds.py"
]
TEXT = "\n".join(path.read_text() for path in SOURCES)


def test_comments_name_exactly_the_workarounds_of_the_table():
    assert set(re.findall(r"Workaround for Triton \(([\w-]+)\)", TEXT)) == {each.key for each in Workaround}


def test_comments_name_workarounds_rather_than_versions():
    assert not re.findall(r"Workaround for Triton \d.*", TEXT)


def test_the_native_half_uses_names_of_the_table():
    used = set(re.findall(r'NeedsWorkaround\("([\w-]+)"\)', TEXT))
    assert used == {"classified-bytes", "deep-stacks", "late-responses"}
    assert used < {each.key for each in Workaround if each.mended_in is not None}


def test_the_bundled_server_needs_all_of_them():
    assert needed(BUNDLED).split(",") == [each.key for each in Workaround]


def test_a_server_of_an_unknown_version_needs_all_of_them():
    assert needed(None) == needed(BUNDLED)


@pytest.mark.parametrize("each", [each for each in Workaround if each.mended_in], ids=lambda each: each.key)
def test_the_version_that_fixed_the_bug_needs_no_workaround(each):
    assert each.is_needed(BUNDLED)
    assert not each.is_needed(each.mended_in)
    assert each.key not in needed(each.mended_in).split(",")
