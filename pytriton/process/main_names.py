"""Functions and classes of the program's ``__main__`` in a worker process, and in processes that this one starts.

`multiprocessing` and `ProcessPoolExecutor` pickle a function as its module and name, so it has to be there. A worker
process does not run the program, whose ``__main__`` may start a server.
"""

from __future__ import annotations

import functools
import pickle
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytriton.utils.replacement import replace_file

_FILE = "main"

_installed: set[str] = set()  # the files whose names this process has


def is_of_main(value: Any) -> bool:
    """Returns whether a value is a function or a class that ``__main__`` has by its name."""
    if not isinstance(value, types.FunctionType | type) or value.__module__ != "__main__":
        return False
    return vars(sys.modules["__main__"]).get(value.__qualname__) is value


def install(names: Mapping[str, Any], pickled_names: bytes, folder: Path) -> None:
    """Adds functions and classes to ``__main__``, and lets processes that `multiprocessing` starts have them, too.

    Args:
        names: The functions and classes by name.
        pickled_names: The same, pickled by value.
        folder: The folder of the worker process, of mode 0700.
    """
    if names:
        _install(names, folder / _FILE, functools.partial(_write_once, folder / _FILE, pickled_names))


def _install(names: Mapping[str, Any], file: Path, provide: Callable[[], None]) -> None:
    from multiprocessing.reduction import ForkingPickler

    vars(sys.modules["__main__"]).update(names)
    _installed.add(str(file))

    def reduce(_: ForkingPickler, value: Any) -> Any:
        if not is_of_main(value) or value.__name__ not in names:
            return NotImplemented
        provide()
        return _named, (str(file), value.__name__)

    ForkingPickler.reducer_override = reduce  # type: ignore[assignment, method-assign]


def _named(file: str, name: str) -> Any:
    """Returns a function or a class of ``__main__``, in a process that `multiprocessing` has started."""
    if file not in _installed:  # it was spawned; a fork has what the worker process has
        _install(pickle.loads(Path(file).read_bytes()), Path(file), lambda: None)
    return vars(sys.modules["__main__"])[name]


def _write_once(file: Path, data: bytes) -> None:
    if not file.exists():
        replace_file(file, data)
