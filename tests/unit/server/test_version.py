"""Versions of servers: parsed, compared, and found in folders."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.server.version import VERSION_FILE, ServerVersion, version_of

NUMBERS = st.integers(0, 10_000)


@given(NUMBERS, NUMBERS, NUMBERS)
def test_a_version_is_read_as_it_was_written(major, minor, patch):
    version = ServerVersion(major, minor, patch)
    assert ServerVersion.parse(str(version)) == version


@pytest.mark.parametrize(
    ("text", "version"), [("2.71.0dev\n", (2, 71, 0)), (" 2.60", (2, 60, 0)), ("2.9.1", (2, 9, 1))]
)
def test_versions_in_the_format_of_servers(text, version):
    assert ServerVersion.parse(text) == version


@pytest.mark.parametrize("text", ["", "two", "2", "v2.51.0"])
def test_a_text_without_a_version_is_refused(text):
    with pytest.raises(ValueError, match="not the version"):
        ServerVersion.parse(text)


def test_later_versions_are_greater():
    assert ServerVersion.parse("2.9.0") < ServerVersion.parse("2.51.0") < ServerVersion.parse("2.51.1")


def test_a_folder_has_its_version_in_a_file(tmp_path):
    (tmp_path / VERSION_FILE).write_text("2.71.0\n")
    assert version_of(tmp_path) == ServerVersion(2, 71)


def test_a_folder_without_that_file_has_no_version(tmp_path):
    assert version_of(tmp_path) is None


def test_a_file_without_a_version_is_reported(tmp_path, caplog):
    (tmp_path / VERSION_FILE).write_text("latest")
    with caplog.at_level(logging.WARNING):
        assert version_of(tmp_path) is None
    assert str(tmp_path / VERSION_FILE) in caplog.text
