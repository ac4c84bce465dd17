"""Checks of the types of arguments, with messages that say what to pass instead."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pytriton.exceptions import PyTritonBadParameterError


def check_instance(what: str, value: object, kind: type) -> None:
    """Checks that an argument is None, or an object of a class.

    Args:
        what: The argument, as the message names it.
        value: Its value.
        kind: The class.

    Raises:
        PyTritonBadParameterError: It is something else.
    """
    if value is None or isinstance(value, kind):
        return
    name = kind.__name__
    if isinstance(value, type):
        raise PyTritonBadParameterError(f"{what} is the class {value.__name__}; use an object, such as {name}(...).")
    remedy = (
        f"use {name}({', '.join(f'{key}=...' for key in value)})" if isinstance(value, Mapping) else f"use a {name}"
    )
    raise PyTritonBadParameterError(f"{what} is {value!r:.200}; {remedy}.")


def check_path(what: str, value: object) -> None:
    """Checks that an argument is None, or a path.

    Args:
        what: The argument, as the message names it.
        value: Its value.

    Raises:
        PyTritonBadParameterError: It is something else, or empty.
    """
    if value is None or isinstance(value, os.PathLike) or (isinstance(value, str) and value):
        return
    raise PyTritonBadParameterError(f"{what} is {value!r}; use the path of a folder.")
