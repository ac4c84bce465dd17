"""Helpers of all adapters: importing a library, and decoding strings."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

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

    They are no error, because that would fail all requests of the batch.

    Examples:
        >>> decode(np.array([[b"yes"], [b"no"]], dtype=object)).tolist()
        [['yes'], ['no']]
    """
    strings = np.empty(array.shape, object)
    strings.ravel()[:] = [element.decode(errors="replace") for element in array.ravel()]
    return strings
