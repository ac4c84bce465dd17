"""Compares the parameters of a function with the inputs of its model."""

from __future__ import annotations

import functools
import inspect
import logging
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from pytriton.constants import TRITON_CONTEXT_FIELD_NAME
from pytriton.decorators.ordering import InferFunc, Stage, filled_by, names_of
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.model_spec import ModelSpec
from pytriton.proxy.worker.execution_mode import is_deferred

LOGGER = logging.getLogger(__name__)

# Usual names of a parameter for a list of requests; an input may have such a name, too.
_LIST_NAMES = frozenset({"args", "batch", "data", "input", "inputs", "request", "requests", "samples"})

_POSITION = re.compile(r"INPUT_\d+")  # the name of an input that was declared without one

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class _Decorated(NamedTuple):
    """A function, and how the decorators of this package above it call it.

    Attributes:
        function: The function below all of them.
        joined_by: The decorator that passes it arrays by name; empty if it is called with a list of requests.
        keywords: Keyword arguments that it receives in addition to the inputs.
        filled: Optional inputs that it always receives.
    """

    function: Any
    joined_by: str
    keywords: frozenset[str]
    filled: frozenset[str]


def check_parameters(infer_func: InferFunc, spec: ModelSpec) -> None:
    """Checks that an inference callable accepts its arguments, as far as its signature shows.

    Args:
        infer_func: Any callable, decorated or not.
        spec: The model.

    Raises:
        PyTritonBadParameterError: Its parameters do not match the inputs, or ``@batch`` or ``@sample`` is missing.
    """
    decorated = _undecorated(infer_func)
    if decorated is None or is_deferred(infer_func):
        return
    try:
        parameters = inspect.signature(decorated.function, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):  # not written in Python
        return
    if decorated.joined_by:
        _check_arrays(decorated, list(parameters), spec)
    else:
        _check_requests(decorated, list(parameters), spec)


def _undecorated(infer_func: InferFunc) -> _Decorated | None:
    """Returns the function below the decorators; None if a user's decorator or a partial comes in between."""
    function: Any = infer_func
    joined_by = ""
    keywords: set[str] = set()
    filled: set[str] = set()
    while True:
        stage = _stage_of(function)
        if stage is not None:
            if type(stage)._self_joins_requests:
                joined_by = stage._self_name
            filled.update(filled_by(stage))
            if stage._self_name == TRITON_CONTEXT_FIELD_NAME:
                keywords.add(TRITON_CONTEXT_FIELD_NAME)
            function = function.__wrapped__
        elif _stage_of(getattr(function, "__call__", None)) is not None:  # noqa: B004  (the bound method)
            function = function.__call__
        elif isinstance(function, functools.partial):
            if function.args:
                return None
            keywords.update(function.keywords)
            function = function.func
        elif hasattr(function, "__wrapped__"):
            return None
        else:
            return _Decorated(function, joined_by, frozenset(keywords), frozenset(filled))


def _stage_of(function: Any) -> Stage | None:
    """Returns the topmost decorator of a callable, or of the function of a method."""
    for candidate in (function, getattr(function, "_self_parent", None)):
        if issubclass(type(candidate), Stage):
            return candidate
    return None


def _check_arrays(decorated: _Decorated, parameters: list[inspect.Parameter], spec: ModelSpec) -> None:
    """Checks a function that is called with arrays by name."""
    inputs = [str(tensor.name) for tensor in spec.inputs]
    given = {*inputs, *decorated.keywords}
    required = [each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY and _is_required(each)]
    by_position = [each.name for each in parameters if each.kind is each.POSITIONAL_ONLY and _is_required(each)]
    takes = [each.name for each in parameters if each.kind in _NAMED]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    unknown = [name for name in required if name not in given]
    missing = [] if takes_any else [name for name in (*inputs, *sorted(decorated.keywords)) if name not in takes]
    optional = {str(tensor.name) for tensor in spec.inputs if tensor.optional}
    ignored = [name for name in missing if name not in optional]
    where = f"Model {spec.name!r}: {_label(decorated.function)} below @{decorated.joined_by}"
    if unknown[:1] == ["self"]:
        raise _unbound(where, decorated.function)
    if not (unknown or ignored or by_position):
        if missing:
            LOGGER.warning(
                "%s has no parameter for the optional input %s, and fails for requests that have it. Add one, or take "
                "the inputs as **inputs.",
                where,
                names_of(missing),
            )
        if bare := [name for name in required if name in optional - decorated.keywords - decorated.filled]:
            LOGGER.warning(
                "%s has no default for its parameter %s, an optional input, and fails for requests without it. Write "
                "%s=None, or put @fill_optionals(%s=...) above @%s.",
                where,
                names_of(bare),
                bare[0],
                bare[0],
                decorated.joined_by,
            )
        return
    if by_position:
        raise PyTritonBadParameterError(
            f"{where} takes {names_of(by_position)} by position only, and inputs are passed by name; remove the '/'."
        )
    if TRITON_CONTEXT_FIELD_NAME in unknown:
        raise PyTritonBadParameterError(f"{where} takes {TRITON_CONTEXT_FIELD_NAME!r}; put @triton_context above it.")
    if TRITON_CONTEXT_FIELD_NAME in ignored:
        raise PyTritonBadParameterError(
            f"{where} is called with {TRITON_CONTEXT_FIELD_NAME!r}, but has no such parameter; add it, or remove "
            "@triton_context."
        )
    if any(each.kind is each.VAR_POSITIONAL for each in parameters) and not takes:
        raise PyTritonBadParameterError(
            f"{where} takes its arguments by position, as '*', and inputs are passed by name; take them as **inputs."
        )
    has = f"the inputs are {names_of(inputs)}" if inputs else "the model has no inputs"
    remedy = "Name the parameters like the inputs"
    if unknown and any(_POSITION.fullmatch(name) for name in ignored):
        remedy = f"Name the inputs like the parameters, Tensor(name={unknown[0]!r}, ...)"
    raise PyTritonBadParameterError(
        f"{where} takes {_listed(takes)}, and {has}: {_difference(unknown, ignored)}. {remedy}, or take the inputs as "
        "**inputs."
    )


def _check_requests(decorated: _Decorated, parameters: list[inspect.Parameter], spec: ModelSpec) -> None:
    """Checks a function that is called with a list of requests."""
    positional = [each for each in parameters if each.kind in _POSITIONAL and each.name not in decorated.keywords]
    required = [each for each in parameters if _is_required(each) and each.name not in decorated.keywords]
    takes_any = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    inputs = {tensor.name for tensor in spec.inputs}
    fits = len(required) <= 1 and all(each.kind in _POSITIONAL for each in required) and (positional or takes_any)
    if fits and not (positional and positional[0].name in inputs - _LIST_NAMES):
        return
    where = f"Model {spec.name!r}: {_label(decorated.function)}"
    if required and required[0].name == "self":
        raise _unbound(where, decorated.function)
    raise PyTritonBadParameterError(
        f"{where} takes {_listed(each.name for each in parameters)}, and is "
        "called with one list of requests. Put @batch above it, which passes each input as an array over a whole "
        "batch, or @sample, which passes one request at a time."
    )


def _unbound(where: str, function: Any) -> PyTritonBadParameterError:
    owner, _, method = _label(function).removesuffix("()").rpartition(".")
    return PyTritonBadParameterError(
        f"{where} takes 'self', so it is the method of a class; bind that of an object, such as "
        f"{owner.rpartition('.')[2]}(){'' if method == '__call__' else f'.{method}'}."
    )


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    return names_of(listed) if listed else "no parameters"


def _is_required(parameter: inspect.Parameter) -> bool:
    variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return not variadic and parameter.default is parameter.empty


def _difference(unknown: Iterable[str], ignored: Iterable[str]) -> str:
    parts = [f"{name!r} is not an input" for name in unknown] + [f"{name!r} is not a parameter" for name in ignored]
    return ", and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _label(function: Any) -> str:
    return f"{getattr(function, '__qualname__', type(function).__name__)}()".replace("<locals>.", "")
