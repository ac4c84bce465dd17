"""Pickles Python objects for another process of the same environment."""

from __future__ import annotations

import io
import pickle
import types
from collections.abc import Callable
from typing import Any

import cloudpickle
import wrapt

from pytriton.decorators.ordering import Stage
from pytriton.process.main_names import is_of_main


def pickled(value: object) -> bytes:
    """Pickles an object by reference or, for functions and classes that cannot be imported, by value.

    Raises:
        Exception: A part of it cannot be pickled.
    """
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def pickled_with_names(value: object) -> bytes:
    """Pickles an object like `pickled`, after a dictionary of the functions and classes of ``__main__`` it refers to.

    Raises:
        Exception: A part of it cannot be pickled.
    """
    names: dict[str, Any] = {}
    _Pickler(_Sink(), names).dump(value)
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(names)
    pickler.dump(value)
    return file.getvalue()


def unpickled_with_names(data: bytes) -> tuple[dict[str, Any], int, Any]:
    """Reads what `pickled_with_names` wrote. Returns the dictionary, its size in bytes, and the object."""
    file = io.BytesIO(data)
    unpickler = pickle.Unpickler(file)  # the object refers to the same functions and classes as the dictionary
    names = unpickler.load()
    return names, file.tell(), unpickler.load()


class _Sink:
    def write(self, data: bytes) -> int:
        return len(data)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO | _Sink, names: dict[str, Any] | None = None) -> None:
        super().__init__(file)
        self._names = {} if names is None else names

    def reducer_override(self, value: Any) -> Any:
        if is_of_main(value):
            self._names[value.__qualname__] = value
        if isinstance(value, types.CodeType):  # from 3.1.3 on, cloudpickle drops the file that tracebacks name
            make, arguments, *_ = self.dispatch_table[types.CodeType](value)
            return _located, (value.co_filename, make, arguments)
        # cloudpickle mistakes a decorated function for the plain function.
        if issubclass(type(value), Stage):
            return _decorated, (value._self_decorator, value.__wrapped__)
        if issubclass(type(value), wrapt.FunctionWrapper):
            return value.__qualname__
        origin = getattr(value, "_self_origin", None) if isinstance(value, types.FunctionType) else None
        return super().reducer_override(value) if origin is None else (origin, ())


def _located(filename: str, make: Callable[..., types.CodeType], arguments: tuple[Any, ...]) -> types.CodeType:
    return make(*arguments).replace(co_filename=filename)


def _decorated(decorator: Callable[[Any], Any], function: Any) -> Any:
    return decorator(function)
