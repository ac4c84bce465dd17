"""Helpers of all adapters: importing a library, decoding strings, and making an inference callable."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pytriton.decorators import batch, sample
from pytriton.proxy.types import Array

InferFunc = Callable[..., Any]


def import_library(adapter: str, library: str, *, package: str, extra: str) -> Any:
    """Imports the library of an adapter.

    Args:
        adapter: The adapter's name, for the error message.
        library: The library's name in an ``import`` statement.
        package: The package that contains it.
        extra: The extra of this package that installs it.

    Raises:
        ImportError: It cannot be imported.
    """
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise ImportError(
            f"{adapter} needs the package {package}: pip install 'pytriton[{extra}]' ({error})."
        ) from error


def decode(array: Array) -> Array:
    """Decodes an array of UTF-8 to an array of strings; invalid bytes become U+FFFD.

    Raising an error would fail all requests of the batch.

    Examples:
        >>> decode(np.array([[b"yes"], [b"no"]], dtype=object)).tolist()
        [['yes'], ['no']]
    """
    strings = np.empty(array.shape, object)
    strings.ravel()[:] = [element.decode(errors="replace") for element in array.ravel()]
    return strings


def infer_func_of(function: Callable[..., dict[str, Array]], description: str, batching: bool = True) -> InferFunc:
    """Converts a function from arrays to arrays to an inference callable.

    If a batch fails, each of its requests is retried alone, so that an invalid request does not fail the others.

    Args:
        function: Takes the inputs by name, and returns the outputs.
        description: Describes the model.
        batching: Whether the first dimension is the batch.
    """
    infer: InferFunc = batch(function) if batching else sample(function)

    def infer_or_isolate(requests: Sequence[Any]) -> Any:
        try:
            return infer(requests)
        except Exception:
            if len(requests) == 1:
                raise
            return [_response_or_error(infer, request) for request in requests]

    infer_or_isolate.__doc__ = description
    return infer_or_isolate


def _response_or_error(infer: InferFunc, request: Any) -> Any:
    try:
        return infer([request])[0]
    except Exception as error:
        return error
