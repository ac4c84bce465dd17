"""The environment that the package is installed in."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imported late: it takes a fifth of the time of `import pytriton`
    from importlib.metadata import Distribution

_NAME = "pytriton"
_RIVAL = "nvidia-pytriton"


def installed_version() -> str:
    """Returns the version of the installed package; ``0+source`` for a source folder that is not installed."""
    own = _find(_NAME)
    return own.version if own else "0+source"


def check_environment() -> None:
    """Raises an error if `nvidia-pytriton` is installed in the same place: both packages own the folder ``pytriton/``.

    Raises:
        ImportError: `nvidia-pytriton` is installed next to this package.
    """
    if not any(map(_may_have_rival, sys.path)):
        return
    rival = _find(_RIVAL)
    if rival is None:
        return
    own = _find(_NAME)
    folder = rival.locate_file("")
    if own is not None and own.locate_file("") == folder:
        raise ImportError(
            f"{_RIVAL} {rival.version} and {_NAME} {own.version} are both installed in {folder} and overwrite each "
            f"other's files: uninstall both with `pip uninstall -y {_RIVAL} {_NAME}`, then install {_NAME} again."
        )


def _may_have_rival(folder: str) -> bool:
    prefix = _RIVAL.replace("-", "_")
    with contextlib.suppress(OSError), os.scandir(folder or os.curdir) as entries:
        return any(entry.name.replace("-", "_").startswith(prefix) for entry in entries)
    return False


def _find(name: str) -> Distribution | None:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution(name)
    except PackageNotFoundError:
        return None
