"""Counting lines of code, for the comparison in docs/examples.md."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "lines_of_code"))

from count import lines_of_code, table  # noqa: E402


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("", 0),
        ("x = 1\n", 1),
        ("x = 1  # one\n\n# two\ny = 2\n", 2),
        ("x = 1; y = 2\n", 1),
        ("f(\n    1,\n\n    2,\n)\n", 4),
        ('"""A module.\n\nMore about it.\n"""\nx = 1\n', 1),
        ('def f():\n    """Does it."""\n    return 1\n', 2),
        ('class C:\n    """A class."""\n\n    def f(self):\n        """Does\n        it."""\n', 2),
        ('x = """a\nb\nc"""\n', 3),
        ('f("""a\nb""")\n', 2),
    ],
)
def test_lines_with_code_are_counted(source: str, lines: int) -> None:
    assert lines_of_code(source) == lines


def test_documentation_has_the_current_table() -> None:
    assert table() in (ROOT / "docs" / "examples.md").read_text()


def test_no_service_takes_many_more_lines_than_with_other_tools() -> None:
    ratios = [float(row.split("|")[-2]) for row in table().splitlines()[2:]]
    assert max(ratios) <= 1.2
