"""Lists the public names of an installed ``pytriton`` as JSON: run it in an environment with nvidia-pytriton 0.7.0.

``python build_tools/list_interface.py > tests/unit/names_0_7_0.json``. Names that a module has from elsewhere, such as
from ``typing``, are left out.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import inspect
import json
import pkgutil
import sys
from types import ModuleType
from typing import Any

_PACKAGE = "pytriton"
_METHODS = ("__init__", "__call__", "__enter__", "__exit__", "__getitem__", "__iter__")


def modules() -> list[str]:
    """Returns the names of all public modules that can be imported."""
    package = importlib.import_module(_PACKAGE)
    names = [_PACKAGE, *(each.name for each in pkgutil.walk_packages(package.__path__, f"{_PACKAGE}."))]
    return [name for name in names if not any(part.startswith("_") for part in name.split("."))]


def names_of(module: ModuleType) -> dict[str, Any]:
    """Describes the names that a module defines, and those that it has from other modules of the package."""
    found = {}
    for name, value in sorted(vars(module).items()):
        origin = getattr(value, "__module__", None) or module.__name__
        if not name.startswith("_") and not inspect.ismodule(value) and str(origin).startswith(_PACKAGE):
            found[name] = _described(value) | ({} if origin == module.__name__ else {"from": origin})
    return found


def _described(value: Any) -> dict[str, Any]:
    if inspect.isclass(value):
        bases = [base.__name__ for base in value.__mro__[1:] if base is not object]
        return {"kind": "class", "bases": bases, "members": _members(value)}
    if inspect.isroutine(value):
        return {"kind": "function", "parameters": parameters(value)}
    return {"kind": "value"}


def _members(cls: type) -> dict[str, Any]:
    members = {}
    for name, value in sorted(vars(cls).items()):
        if name.startswith("_") and name not in _METHODS:
            continue
        function = getattr(value, "__func__", value)
        members[name] = parameters(function) if inspect.isroutine(function) else None
    if issubclass(cls, enum.Enum):
        members = dict.fromkeys(cls.__members__)
    return members


def parameters(function: Any) -> list[str] | None:
    """Returns the names of a function's parameters; None if they cannot be read."""
    with contextlib.suppress(TypeError, ValueError):
        return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    return None


def main() -> None:
    """Writes the list to stdout."""
    found = {}
    for name in modules():
        with contextlib.suppress(ImportError):
            found[name] = names_of(importlib.import_module(name))
    json.dump(found, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
