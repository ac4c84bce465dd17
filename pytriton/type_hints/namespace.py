"""Looks up the names in annotations."""

from __future__ import annotations

import sys
import typing
from collections.abc import Mapping
from typing import Any

from pytriton.exceptions import PyTritonBadParameterError

Namespace = Mapping[str, Any]

_PACKAGE = __name__.partition(".")[0]


def calling_namespace() -> dict[str, Any]:
    """Returns the local names of the code that called this package, and of its callers within the same module.

    Annotations that are strings (``from __future__ import annotations``) may name a function's local types.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    names: dict[str, Any] = {}
    module = None if frame is None else frame.f_globals
    while frame is not None and frame.f_globals is module:
        names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names


def without_alias(hint: Any) -> Any:
    """Returns the type behind an alias ``type Name = ...``, such as NumPy's newer ``NDArray``; others unchanged."""
    while (value := getattr(typing.get_origin(hint) or hint, "__value__", None)) is not None:
        arguments = typing.get_args(hint)
        hint = value[arguments] if arguments else value
    return hint


def resolved(annotated: Any, namespace: Namespace) -> dict[str, Any]:
    """Returns the annotations of a function or a class as types.

    Args:
        annotated: The function or class.
        namespace: Names besides those of its module.

    Raises:
        PyTritonBadParameterError: An annotation names something undefined; the message is the end of a sentence.
    """
    try:
        return typing.get_type_hints(annotated, localns=dict(namespace), include_extras=True)
    except NameError as error:
        raise PyTritonBadParameterError(
            f"has annotations that name {error.name!r}, which is not defined; import it, or define it above."
        ) from error
    except Exception as error:  # whatever the code in an annotation raises
        raise PyTritonBadParameterError(
            f"has annotations that cannot be read: {type(error).__name__}: {error}"
        ) from error
