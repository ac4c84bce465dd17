"""The source files of a program: its modules below one folder, their imports, and importing them again."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.machinery
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

_LIBRARIES = ("site-packages", "dist-packages", "node_modules", "__pycache__")
_FOREIGN = ("__main__", "pytriton")  # they run the program

Signature = tuple[int, int, int]


class Sources:
    """The modules that a program has imported from below a folder, except libraries.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def modules(self) -> dict[str, ModuleType]:
        """Returns the modules that are imported, by name."""
        return {
            name: module
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] not in _FOREIGN and self.holds(_file_of(module))
        }

    def holds(self, path: Path | None) -> bool:
        """Returns whether a file is one of the program's own sources."""
        if path is None or path.suffix != ".py" or not path.is_relative_to(self.root):
            return False
        return not any(part in _LIBRARIES or part.startswith(".") for part in path.relative_to(self.root).parts)

    def files(self) -> dict[Path, Signature | None]:
        """Returns the files of the imported modules, each with its signature."""
        paths = {_file_of(module) for module in self.modules().values()}
        return {path: signature_of(path) for path in paths if path is not None}

    def affected(self, changed: Container[Path]) -> set[str]:
        """Returns the names of modules that have changed, or import changed ones directly or indirectly."""
        modules = self.modules()
        needs = {name: _imports(module) & modules.keys() for name, module in modules.items()}
        affected = {name for name, module in modules.items() if _file_of(module) in changed}
        while grown := {name for name in needs.keys() - affected if needs[name] & affected}:
            affected |= grown
        return affected


def signature_of(path: Path) -> Signature | None:
    """Returns a signature that changes when the file is saved; None if the file is gone."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


@contextlib.contextmanager
def without(names: Iterable[str], sources: Sources) -> Iterator[None]:
    """Forgets modules, so that they are imported again; restores them after an error.

    Args:
        names: The modules' names.
        sources: The program's sources; modules that are imported within the block are forgotten after an error.
    """
    before = sources.modules()
    for name in names:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    try:
        yield
    except BaseException:
        for name in sources.modules().keys() - before.keys():
            sys.modules.pop(name, None)
        for name, module in before.items():
            sys.modules[name] = module
            parent, _, child = name.rpartition(".")
            if parent in sys.modules:
                setattr(sys.modules[parent], child, module)
        raise


def read_sources_afresh(sources: Sources) -> None:
    """Makes Python compile the program's modules from their sources, without bytecode files.

    Python considers a bytecode file current if the source has the same size and was saved in the same second.

    Args:
        sources: The program's sources.
    """
    loaders = (
        (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
        (_SourceLoader, importlib.machinery.SOURCE_SUFFIXES),
    )

    def hook(folder: str) -> importlib.machinery.FileFinder:
        if not (sources.holds(Path(folder).resolve() / "any.py") and Path(folder).is_dir()):
            raise ImportError
        return importlib.machinery.FileFinder(folder, *((loader, list(suffixes)) for loader, suffixes in loaders))

    sys.path_hooks.insert(0, hook)
    for folder in list(sys.path_importer_cache):
        if sources.holds(Path(folder).resolve() / "any.py"):
            del sys.path_importer_cache[folder]


class _SourceLoader(importlib.machinery.SourceFileLoader):
    def path_stats(self, path: str) -> Mapping[str, int]:
        """Omits the source's age, so that no bytecode file is read or written."""
        raise OSError


def _file_of(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) else None


def _imports(module: ModuleType) -> set[str]:
    """Returns the names that a module's source imports, and its packages; not all names are modules."""
    found = set(_with_parents(module.__name__)) - {module.__name__}
    path = _file_of(module)
    try:
        tree = ast.parse(path.read_bytes()) if path is not None else None
    except (OSError, SyntaxError, ValueError):  # the file has just changed
        return found
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.update(_with_parents(alias.name))
        elif isinstance(node, ast.ImportFrom):
            base = _base_of(node, module)
            found.update(_with_parents(base))
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


def _base_of(node: ast.ImportFrom, module: ModuleType) -> str:
    if not node.level:
        return node.module or ""
    package = (module.__package__ or "").split(".")
    kept = package[: len(package) - node.level + 1]
    return ".".join([*kept, *([node.module] if node.module else [])])


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[: count + 1]) for count in range(len(parts)))
