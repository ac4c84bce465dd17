"""The Python interpreter that runs this program."""

from __future__ import annotations

import sys


def own_interpreter() -> str | None:
    """Returns the interpreter's path, or None if this program is a frozen executable, or embeds Python."""
    return None if getattr(sys, "frozen", False) else sys.executable or None
