"""Pickles Python objects for another process of the same environment."""

from __future__ import annotations

import io
import types
from collections.abc import Callable
from typing import Any

import cloudpickle
import wrapt

from pytriton.decorators.ordering import Stage


def pickled(value: object) -> bytes:
    """Pickles an object by reference or, for functions and classes that cannot be imported, by value.

    Raises:
        Exception: A part of it cannot be pickled.
    """
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, value: Any) -> Any:
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
