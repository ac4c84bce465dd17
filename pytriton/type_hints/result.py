"""The type hint of a function's result: one value, or several with names."""

from __future__ import annotations

import collections.abc
import dataclasses
import operator
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.tensor import Tensor
from pytriton.type_hints.namespace import Namespace, resolved, without_alias
from pytriton.type_hints.value import ValueHint, shown, value_hint

ONLY_OUTPUT = "output"
"""The name of the output of a function that returns one value."""

_STREAMS = (
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
    collections.abc.AsyncIterator,
    collections.abc.AsyncIterable,
    collections.abc.AsyncGenerator,
)
_QUALIFIERS = ("Required", "NotRequired", "ReadOnly")


class ResultHint(NamedTuple):
    """The result that a type hint describes.

    Attributes:
        values: The outputs by name.
        streams: Whether the function yields such results one after the other.
        named: Returns the values of a result by name; None if the result is a dictionary of them itself.
        converted: Whether an inference callable cannot return such a result: it is neither a dictionary nor a tuple.
    """

    values: dict[str, ValueHint]
    streams: bool = False
    named: Callable[[Any], Mapping[str, Any]] | None = None
    converted: bool = True


def result_hint(hint: Any, namespace: Namespace) -> ResultHint:
    """Reads the type hint of a result.

    Args:
        hint: The type, resolved.
        namespace: Where names in the annotations of its fields are looked up, if it has fields.

    Raises:
        PyTritonBadParameterError: It does not describe tensors; the message is the end of a sentence.

    Examples:
        >>> list(result_hint(str, {}).values)
        ['output']
    """
    hint = without_alias(hint)
    if any(hint is each for each in _STREAMS) or (typing.get_origin(hint) in _STREAMS and not typing.get_args(hint)):
        name = shown(hint)
        raise PyTritonBadParameterError(f"is {name}, without the type of its items; write {name}[str], for example.")
    if typing.get_origin(hint) in _STREAMS:
        return _result(typing.get_args(hint)[0], namespace)._replace(streams=True)
    return _result(hint, namespace)


def has_fields(hint: Any) -> bool:
    """Returns whether a type has named fields: it can be a result, whose outputs they are, but not an argument."""
    hint = without_alias(hint)
    return typing.is_typeddict(hint) or dataclasses.is_dataclass(hint) or _is_named_tuple(hint) or _is_pydantic(hint)


def _is_named_tuple(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")


def _is_pydantic(hint: Any) -> bool:
    """Returns whether a type is a model of pydantic, which need not be installed."""
    return isinstance(hint, type) and isinstance(getattr(hint, "model_fields", None), dict)


def _result(hint: Any, namespace: Namespace) -> ResultHint:
    hint = without_alias(hint)
    if typing.is_typeddict(hint):
        return ResultHint(_fields(hint, resolved(hint, namespace)), converted=False)
    if dataclasses.is_dataclass(hint):
        names = [field.name for field in dataclasses.fields(hint)]
        hints = resolved(hint, namespace)
        return ResultHint(_fields(hint, {name: hints[name] for name in names}), named=_by_attributes(names))
    if _is_named_tuple(hint):
        values = _fields(hint, resolved(hint, namespace))
        return ResultHint(values, named=operator.methodcaller("_asdict"), converted=False)
    if _is_pydantic(hint):
        annotations = {name: _annotation(field) for name, field in hint.model_fields.items()}
        return ResultHint(_fields(hint, annotations), named=_by_attributes(list(annotations)))
    if hint is None or hint is type(None):
        raise PyTritonBadParameterError("is None; a model has at least one output.")
    if typing.get_origin(hint) in (tuple, dict) or hint in (tuple, dict):
        raise PyTritonBadParameterError(
            f"has the type hint {shown(hint)}, which does not name the outputs; write a TypedDict, a dataclass or a "
            "NamedTuple with a field for each."
        )
    value = value_hint(hint)
    if value.optional:
        raise PyTritonBadParameterError(f"has the type hint {shown(hint)}; every response has all outputs.")
    name = value.tensor.name or ONLY_OUTPUT
    return ResultHint({name: value}, named=lambda result: {name: result})


def _fields(hint: Any, annotations: Mapping[str, Any]) -> dict[str, ValueHint]:
    values = {}
    for name, annotation in annotations.items():
        if getattr(typing.get_origin(annotation), "_name", None) in _QUALIFIERS:
            (annotation,) = typing.get_args(annotation)
        try:
            value = value_hint(annotation)
        except PyTritonBadParameterError as error:
            raise PyTritonBadParameterError(f"is {shown(hint)}, whose field {name!r} {error.message}") from error
        if value.tensor.name not in (None, name):
            raise PyTritonBadParameterError(
                f"is {shown(hint)}, whose field {name!r} has a Tensor with the name {value.tensor.name!r}; "
                "give both one name."
            )
        values[name] = value
    if not values:
        raise PyTritonBadParameterError(f"is {shown(hint)}, which has no fields; a model has at least one output.")
    return values


def _annotation(field: Any) -> Any:
    """Returns the annotation of a model's field, without the constraints, which pydantic checks."""
    tensor = next((each for each in field.metadata if isinstance(each, Tensor)), None)
    return field.annotation if tensor is None else Annotated[field.annotation, tensor]


def _by_attributes(names: list[str]) -> Callable[[Any], Mapping[str, Any]]:
    def named(result: Any) -> Mapping[str, Any]:
        return {name: getattr(result, name) for name in names}

    return named
