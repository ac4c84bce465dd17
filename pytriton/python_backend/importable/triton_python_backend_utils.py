"""``import triton_python_backend_utils`` in the processes that a model starts, which have the worker's import path.

If they lack the package ``pytriton``, its modules are found from here, as in the worker itself.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Iterable
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2]


def _folders_of(name: str) -> Iterable[str]:
    """Returns the folders of a package; none if there is no such package."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__path__", ())
    found = importlib.util.find_spec(name)
    return (found and found.submodule_search_locations) or ()


def _provide_package() -> None:
    """Makes ``pytriton`` refer to the package of this file, unless there is one that has these modules.

    Modules of another ``pytriton`` that were imported before keep working where they are already referenced.
    """
    if any(Path(folder, "python_backend").is_dir() for folder in _folders_of("pytriton")):
        return
    for name in [name for name in sys.modules if name.partition(".")[0] == "pytriton"]:
        del sys.modules[name]
    package = types.ModuleType("pytriton")
    package.__path__ = [str(_PACKAGE)]
    sys.modules["pytriton"] = package


_provide_package()
sys.modules[__name__] = importlib.import_module(f"pytriton.python_backend.{__name__}")
