"""A program that ``pytriton run`` serves: its location, its import, and the `Triton` in it."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import itertools
import os
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pytriton.exceptions import PyTritonBadParameterError, PyTritonError
from pytriton.run_options import StartRefusedError

if TYPE_CHECKING:
    from pytriton.triton import TritonBase

_PACKAGE = Path(__file__).parents[1]
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class AppError(PyTritonError):
    """A program cannot be imported, or has nothing to serve."""


@dataclasses.dataclass(frozen=True)
class App:
    """A program to serve.

    Attributes:
        name: Its name as given by the user.
        module: The name of its module.
        root: The folder from which its modules are imported.
        attribute: The name of its `Triton`; None if it has only one.

    Examples:
        >>> App.parse("service.models:triton").module  # doctest: +SKIP
        'service.models'
    """

    name: str
    module: str
    root: Path
    attribute: str | None = None

    @classmethod
    def parse(cls, text: str) -> App:
        """Finds a program.

        Args:
            text: The path of a file, or the name of a module, optionally followed by ``:`` and the name of a `Triton`.

        Raises:
            PyTritonBadParameterError: There is no such program.
        """
        name, _, attribute = text.partition(":")
        is_file = name.endswith(".py") or os.sep in name
        module, root = _of_file(Path(name)) if is_file else _of_module(name)
        return cls(name, module, root, attribute or None)

    def load(self) -> ModuleType:
        """Imports the program's module, unless it is imported already.

        Raises:
            AppError: It cannot be imported.
        """
        if str(self.root) not in sys.path:
            sys.path.insert(0, str(self.root))
        try:
            module = importlib.import_module(self.module)
        except StartRefusedError:
            raise
        except Exception as error:
            raise self._error(error) from error
        file = getattr(module, "__file__", None)
        if file is None or not Path(file).resolve().is_relative_to(self.root):
            raise PyTritonBadParameterError(
                f"{self.name} has the name of another module, {self.module!r} ({file or 'built in'}); rename it."
            )
        return module

    def find_triton(self, module: ModuleType) -> TritonBase:
        """Returns the program's `Triton`, with the models that `pytriton.model` declares.

        Args:
            module: The program's module.

        Raises:
            AppError: It has none, or several.
        """
        from pytriton.triton import Triton, TritonBase

        names = {id(value): name for name, value in vars(module).items() if isinstance(value, TritonBase)}
        if self.attribute is not None:
            triton = getattr(module, self.attribute, None)
            if not isinstance(triton, TritonBase):
                others = f"there is {_listed(names.values())}" if names else "there is none; leave the name out"
                raise AppError(f"{self.name}: {self.attribute!r} is not a Triton; {others}.")
        elif len(names) > 1:
            first = next(iter(names.values()))
            raise AppError(
                f"{self.name} has several Triton objects: {_listed(names.values())}; name one: {self.name}:{first}"
            )
        else:
            triton = getattr(module, *names.values()) if names else None
        declared = _declared_models(module)
        if triton is None and not declared:
            raise AppError(
                f"{self.name} has no Triton at module level, and no function with the decorator @pytriton.model, that "
                "could be served; put the decorator above a function to serve it. If the program serves only below "
                "`if __name__ == '__main__':`, run it with Python."
            )
        if triton is None:
            triton = Triton()
        bound = {model.name for model in triton.models}
        for model in declared:
            if model.name not in bound:
                model.bind(triton)
        return triton

    def _error(self, error: Exception) -> AppError:
        """Returns an error that shows where in the program an exception was raised."""
        trace = error.__traceback__
        while trace is not None and not Path(trace.tb_frame.f_code.co_filename).is_relative_to(self.root):
            trace = trace.tb_next
        text = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
        if isinstance(error, PyTritonError):  # a mistake of the program: where it is, and what is wrong
            frames = itertools.takewhile(lambda frame: not _is_ours(frame.filename), traceback.extract_tb(trace))
            text = f"{''.join(traceback.format_list(list(frames)))}{error.message}"
        advice = ""
        if isinstance(error, ModuleNotFoundError) and error.name == "triton_python_backend_utils":
            advice = "\nModels for Triton's Python backend are served by `pytriton serve REPOSITORY`."
        return AppError(f"{self.name} cannot be imported.\n{text}{advice}")


def _is_ours(file: str) -> bool:
    return Path(file).is_relative_to(_PACKAGE)


def _declared_models(module: ModuleType) -> list[Any]:
    from pytriton.type_hints import declared_models

    return list(declared_models(vars(module)))


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names)) or "none"


def _of_file(path: Path) -> tuple[str, Path]:
    path = path.resolve()
    if not path.is_file() or path.suffix != ".py":
        raise PyTritonBadParameterError(f"There is no Python file {str(path)!r}; give a file, or a module's name.")
    parts, folder = [path.stem], path.parent
    if path.name == "__init__.py":
        parts = []
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts), folder


def _of_module(name: str) -> tuple[str, Path]:
    if not _MODULE.fullmatch(name):
        raise PyTritonBadParameterError(f"{name!r} is neither a Python file nor the name of a module.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    top = name.partition(".")[0]
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        hint = f"; did you mean {name}.py?" if Path(f"{name}.py").is_file() else ""
        raise PyTritonBadParameterError(f"There is no module {top!r} in {here} or among the installed packages{hint}.")
    origin = Path(spec.origin).resolve()
    return name, origin.parent.parent if spec.submodule_search_locations is not None else origin.parent
