"""The order of decorators: what each accepts and passes on, and the errors for a wrong order."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, overload

import numpy as np
import wrapt

from pytriton.constants import TRITON_CONTEXT_FIELD_NAME
from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.model_config.model_spec import ModelSpec
from pytriton.proxy.context import Requests
from pytriton.proxy.tensors.batch import WholeBatch
from pytriton.proxy.tensors.gpu_tensor import GpuTensor
from pytriton.proxy.types import Array

LOGGER = logging.getLogger(__name__)

InferFunc = Callable[..., Any]
FunctionT = TypeVar("FunctionT", bound=InferFunc)
Arguments = tuple[Any, ...]
Inputs = dict[str, Any]
REQUESTS = "a list of requests"
ARRAYS = "arrays"
FIRST_VALUES = "first values"
ORDER = (
    "the order, from top to bottom, is @fill_optionals, @group_by_keys, @batch or @sample, @group_by_values, "
    "@pad_batch, @first_value, with @triton_context anywhere"
)


class Stage(wrapt.FunctionWrapper):  # type: ignore[type-arg]
    """A callable with a decorator of this package, which checks that it fits the one below."""

    _self_name: str
    _self_takes: str | None
    _self_gives: str | None
    _self_joins_requests: bool
    _self_passes_requests: bool
    _self_check: Callable[[ModelSpec], None] | None
    _self_settings: Mapping[str, Any]  # used if the model is bound without a ModelConfig
    _self_decorator: InferFunc
    _self_origin: Callable[[], InferFunc] | None

    def __init__(self, wrapped: InferFunc, wrapper: InferFunc, enabled: Any = None) -> None:
        below, own = next_stage(wrapped), type(self)
        if not callable(wrapped) and not hasattr(wrapped, "__get__"):  # a classmethod before Python 3.13
            also = ", and pass its settings by name, as in @batch(max_batch_size=8)" if own._self_joins_requests else ""
            raise PyTritonBadParameterError(
                f"@{own._self_name} was given {wrapped!r:.200}, which is not a function; put it above one{also}."
            )
        if below is not None and own._self_joins_requests and below._self_joins_requests:
            raise PyTritonValidationError(
                f"@{own._self_name} stands directly above @{below._self_name}, and both turn a list of requests into "
                f"arrays; keep one of them: {ORDER}"
            )
        if below is not None and own._self_gives is not None and below._self_takes not in (None, own._self_gives):
            raise PyTritonValidationError(
                f"@{own._self_name} stands directly above @{below._self_name}, but passes {own._self_gives} on, while "
                f"@{below._self_name} takes {below._self_takes}: {ORDER}"
            )
        super().__init__(wrapped, wrapper, enabled)


class Decorator(Protocol):
    """A decorator, used with or without parentheses, that preserves the function's type."""

    @overload
    def __call__(self, function: FunctionT, /) -> FunctionT: ...

    @overload
    def __call__(self) -> Callable[[FunctionT], FunctionT]: ...


def stage_decorator(
    name: str,
    takes: str | None,
    gives: str | None,
    check: Callable[[ModelSpec], None] | None = None,
    origin: Callable[[], InferFunc] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Callable[[InferFunc], Decorator]:
    """Creates a decorator from a wrapper.

    Args:
        name: The decorator's name.
        takes: The argument that it accepts; None for anything.
        gives: The argument that it passes to the callable below; None if it is the same.
        check: Raises an error if the decorator does not fit a model.
        origin: Recreates the decorator in another process; None if it can be imported.
        settings: Fields of `ModelConfig`, for a model that is bound without one.
    """
    traits: dict[str, Any] = {
        "_self_name": name,
        "_self_takes": takes,
        "_self_gives": gives,
        "_self_joins_requests": (takes, gives) == (REQUESTS, ARRAYS),
        "_self_passes_requests": (takes, gives) == (REQUESTS, REQUESTS) or name == TRITON_CONTEXT_FIELD_NAME,
        "_self_check": None if check is None else staticmethod(check),
        "_self_origin": None if origin is None else staticmethod(origin),  # a partial is a method, too, from 3.14 on
        "_self_settings": settings or {},
    }
    proxy: Any = type("Stage", (Stage,), traits)
    decorated = wrapt.decorator(proxy=proxy)

    def made(wrapper: InferFunc) -> Decorator:
        applied: Any = decorated(wrapper)

        def decorator(function: Any = None, /) -> Any:
            return decorator if function is None else applied(function)

        functools.update_wrapper(decorator, wrapper)
        decorator.__wrapped__ = applied  # type: ignore[attr-defined]  # whose signature is that of nvidia-pytriton
        decorator._self_origin = origin  # type: ignore[attr-defined]
        proxy._self_decorator = staticmethod(decorator)
        return decorator

    return made


def check_infer_func(infer_func: InferFunc, spec: ModelSpec) -> None:
    """Checks the decorators of an inference callable when it is bound.

    Args:
        infer_func: Any callable, decorated or not.
        spec: The model.

    Raises:
        PyTritonValidationError: ``@batch`` or ``@sample`` is missing at the top.
        PyTritonBadParameterError: A default of `fill_optionals` does not fit the model, or a key of `group_by_values`
            is not an input.
    """
    top = next_stage(infer_func)
    if top is not None and top._self_takes == ARRAYS:
        raise PyTritonValidationError(
            f"Model {spec.name!r}: its inference callable starts with @{top._self_name}, which takes arrays, but is "
            f"called with a list of requests; put @batch above it: {ORDER}"
        )
    direct = list(_direct_stages(infer_func))
    for stage in _stages(infer_func):
        # A user's decorator, or a partial, may add inputs to the arrays that it passes on.
        if stage._self_check is not None and (stage._self_takes == REQUESTS or any(stage is each for each in direct)):
            stage._self_check(spec)
    _warn_of_optionals(direct, spec)


def _warn_of_optionals(stages: Sequence[Stage], spec: ModelSpec) -> None:
    """Warns of optional inputs that only some requests of a batch may have, if no decorator handles that."""
    names = [stage._self_name for stage in stages]
    if "batch" not in names or "group_by_keys" in names or not spec.batching or spec.max_batch_size == 1:
        return
    filled = {name for stage in stages for name in filled_by(stage)}
    optional = [tensor.name for tensor in spec.inputs if tensor.optional and tensor.name not in filled]
    if optional:
        LOGGER.warning(
            "Model %r: requests with and without the optional input %s fail if they are in one batch; put "
            "@group_by_keys above @batch, or @fill_optionals with a default.",
            spec.name,
            names_of(optional),
        )


def filled_by(stage: Stage) -> Iterable[str]:
    """Returns the names of the inputs for which a decorator has defaults."""
    origin = stage._self_origin
    return origin.keywords if stage._self_name == "fill_optionals" and isinstance(origin, functools.partial) else ()


def next_stage(function: Any) -> Stage | None:
    """Returns the outermost decorator of this package, except ``@triton_context``, which accepts anything."""
    for stage in _stages(function, follow=False):
        if stage._self_name != TRITON_CONTEXT_FIELD_NAME:
            return stage
    return None


def decorators_of(function: Any) -> list[str]:
    """Returns the names of the decorators of this package around a function, from the outermost."""
    return [stage._self_name for stage in _stages(function)]


def settings_of(function: Any) -> dict[str, Any]:
    """Returns the fields of `ModelConfig` that are set in the decorators of a function."""
    return {name: value for stage in _stages(function) for name, value in stage._self_settings.items()}


def _stages(function: Any, follow: bool = True) -> Iterator[Stage]:
    """Iterates over the decorators of this package around a function, from the outermost.

    Args:
        function: Any callable.
        follow: Whether to include those below a user's decorator.
    """
    while True:
        stage = _stage_of(function)
        if stage is None and follow:
            with_stage = inspect.unwrap(function, stop=lambda each: _stage_of(each) is not None)
            stage = _stage_of(with_stage)
        if stage is None:
            return
        yield stage
        function = stage.__wrapped__


def _direct_stages(function: Any) -> Iterator[Stage]:
    """Iterates over the decorators of this package that have no other decorator above them."""
    while not isinstance(function, functools.partial) and (stage := _stage_of(function)) is not None:
        yield stage
        function = stage.__wrapped__


def _stage_of(function: Any) -> Stage | None:
    """Returns the callable or its unbound method if it is decorated, otherwise None."""
    while isinstance(function, functools.partial):
        function = function.func
    call = getattr(type(function), "__call__", None)  # noqa: B004  (of the type, where Python looks for it)
    for each in (function, call):
        for candidate in (each, getattr(each, "_self_parent", None), getattr(each, "__func__", None)):
            if issubclass(type(candidate), Stage):
                return candidate
    return None


def are_requests(value: Any) -> bool:
    """Returns whether a value is a list of requests."""
    if type(value) is WholeBatch:  # it creates its requests on first access
        return True
    return isinstance(value, Sequence) and (not value or isinstance(value[0], Mapping))


def requests_of(name: str, args: Arguments) -> tuple[Requests, Arguments]:
    """Splits a decorator's arguments into the list of requests and the rest."""
    if args and type(args[0]) is WholeBatch:
        return args[0], args[1:]
    if args and isinstance(args[0], type):  # since Python 3.13, classmethod does not bind the wrapped function
        raise PyTritonValidationError(
            f"@{name} takes a list of requests, but was given the class {args[0].__name__}: put it above @classmethod"
        )
    if not args or not are_requests(args[0]):
        given = f"{shown(args[0])}" if args else "no positional argument"
        raise PyTritonValidationError(
            f"@{name} takes a list of requests, but was given {given}: put it above the decorator that unpacks them; "
            f"{ORDER}"
        )
    if not args[0]:
        raise PyTritonValidationError(f"@{name} was given an empty list; give it at least one request")
    return args[0], args[1:]


def arrays_of(name: str, args: Arguments, kwargs: Inputs) -> dict[str, Array]:
    """Returns a decorator's inputs, without other keyword arguments such as the context.

    Inputs on a GPU are copied to memory, where rows can be selected.

    Raises:
        PyTritonValidationError: There are requests or arrays without a name. A plain wrapper above the decorator of a
            method passes the object.
    """
    for arg in args:
        if isinstance(arg, (Sequence, np.ndarray, GpuTensor)):
            raise PyTritonValidationError(
                f"@{name} takes arrays, but was given {shown(arg)}: put @batch above it; {ORDER}"
            )
    return {
        key: np.asarray(value)
        for key, value in kwargs.items()
        if isinstance(value, (np.ndarray, GpuTensor)) and value.ndim
    }


def names_of(names: Iterable[Any]) -> str:
    """Lists names for an error message."""
    return ", ".join(map(repr, names)) or "none"


def shown(value: Any) -> str:
    """Describes a value in a few words."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a value of type {type(value).__name__}"
