"""The numbers that the build changes in the server's executable."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def executable(transfer_size: ModuleType, tmp_path: Path) -> Path:
    """A stand-in for the published server: its known parts, among zeros."""
    content = bytearray(max(constant.offset for constant in transfer_size.CONSTANTS) + 64)
    for offset, code, value, width in transfer_size.CONSTANTS:
        published = bytes.fromhex(code) + value.to_bytes(width, "little")
        content[offset - len(bytes.fromhex(code)) : offset + width] = published
    path = tmp_path / "tritonserver"
    path.write_bytes(content)
    return path


def test_every_number_is_raised_and_nothing_else_changes(transfer_size: ModuleType, executable: Path) -> None:
    content = bytearray(executable.read_bytes())
    transfer_size.raise_transfer_size(executable)
    for offset, _, _, width in transfer_size.CONSTANTS:
        content[offset : offset + width] = transfer_size.SIZE.to_bytes(width, "little")
    assert executable.read_bytes() == content


@pytest.mark.parametrize("place", range(7))
def test_another_version_is_refused_and_left_unchanged(transfer_size: ModuleType, executable: Path, place: int) -> None:
    content = bytearray(executable.read_bytes())
    content[transfer_size.CONSTANTS[place].offset] ^= 1
    executable.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"tritonserver has \w+ before 0x\w+ where \w+ is expected: it is another version"
    ):
        transfer_size.raise_transfer_size(executable)
    assert executable.read_bytes() == content


def test_a_file_that_is_too_short_is_refused(transfer_size: ModuleType, tmp_path: Path) -> None:
    script = tmp_path / "tritonserver"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(ValueError, match="another version of the server"):
        transfer_size.raise_transfer_size(script)
