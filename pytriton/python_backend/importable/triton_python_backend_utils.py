"""``import triton_python_backend_utils`` in the processes that a model starts, which have the worker's import path.

They need not have the package ``pytriton``: then its modules are found from here, as in the worker itself.
"""

import importlib.util
import sys
import types
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2]


def _provide_package() -> None:
    """Makes ``pytriton`` the package that this file belongs to, unless there is one that has these modules."""
    if "pytriton" in sys.modules:
        return
    found = importlib.util.find_spec("pytriton")
    folders = (found and found.submodule_search_locations) or []
    if not any(Path(folder, "python_backend").is_dir() for folder in folders):
        package = types.ModuleType("pytriton")
        package.__path__ = [str(_PACKAGE)]
        sys.modules["pytriton"] = package


_provide_package()
sys.modules[__name__] = importlib.import_module(f"pytriton.python_backend.{__name__}")
