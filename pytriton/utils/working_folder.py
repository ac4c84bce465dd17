"""The folder that a program was started in, for processes that are started again later."""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path("/")


def working_folder() -> Path:
    """Returns the process's working directory, or ``/`` if it has been deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return _ROOT


def existing_or_root(folder: Path) -> Path:
    """Returns a folder for a process to start in, or ``/`` if it has been deleted or may not be entered.

    Examples:
        >>> existing_or_root(Path("/tmp")), existing_or_root(Path("/tmp/deleted"))
        (PosixPath('/tmp'), PosixPath('/'))
    """
    return folder if os.access(folder, os.X_OK) and folder.is_dir() else _ROOT
