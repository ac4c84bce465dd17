"""Converts functions with type hints to inference callables."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import numbers
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pytriton.constants import TRITON_CONTEXT_FIELD_NAME
from pytriton.decorators import batch, group_by_keys, sample, triton_context
from pytriton.decorators.ordering import REQUESTS, decorators_of, next_stage
from pytriton.exceptions import PyTritonBadParameterError, PyTritonModelConfigError
from pytriton.model_config.arguments import check_instance
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.tensor import Tensor
from pytriton.models.definition import InferenceSource, ModelDefinition
from pytriton.process.instance import FactoryInstance
from pytriton.proxy.context import TritonContext
from pytriton.type_hints.array import BATCH
from pytriton.type_hints.call import Call
from pytriton.type_hints.namespace import Namespace, calling_namespace, resolved
from pytriton.type_hints.result import ResultHint, has_fields, result_hint
from pytriton.type_hints.value import ADVICE, ValueHint, shown, value_hint

_FRAMEWORKS = ("fastapi", "pydantic")  # whose defaults, such as Field(10) and Depends(get), they replace by values
_KINDS: dict[type, Any] = {
    str: str,
    bytes: bytes,
    bool: (bool, np.bool_),
    int: numbers.Integral,
    float: numbers.Real,
}
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class FunctionHints(NamedTuple):
    """The inputs and outputs that a function's type hints describe.

    Attributes:
        label: How messages refer to the function.
        arguments: Its inputs by name.
        result: Its outputs.
        context: The name of the argument for the `TritonContext`; None if there is none.
    """

    label: str
    arguments: dict[str, ValueHint]
    result: ResultHint
    context: str | None

    @property
    def inputs(self) -> list[Tensor]:
        """The inputs."""
        return [
            dataclasses.replace(value.tensor, name=name, optional=value.optional)
            for name, value in self.arguments.items()
        ]

    @property
    def outputs(self) -> list[Tensor]:
        """The outputs."""
        return [
            dataclasses.replace(value.tensor, name=name, optional=False) for name, value in self.result.values.items()
        ]

    @property
    def batched(self) -> bool:
        """Whether arrays have the batch as their first dimension.

        Raises:
            PyTritonBadParameterError: Some have it and others do not.
        """
        values = self.arguments | {f"result {name!r}": value for name, value in self.result.values.items()}
        with_batch = [name for name, value in values.items() if value.batched]
        without = [name for name, value in values.items() if value.batched is False]
        if with_batch and without:
            raise PyTritonBadParameterError(
                f"{self.label}: {_quoted(with_batch[0])} has {BATCH!r} as its first dimension, but "
                f"{_quoted(without[0])} does not; a batch has a row for each sample in every input and output."
            )
        return bool(with_batch)


def define(
    source: InferenceSource | Sequence[InferenceSource],
    *,
    inputs: Sequence[Tensor] | None = None,
    outputs: Sequence[Tensor] | None = None,
    config: ModelConfig | None = None,
    max_batch_size: int | None = None,
) -> ModelDefinition:
    """Defines a model by a function with type hints.

    If a first dimension is named ``batch``, the function is called once per batch (`batch`), otherwise once per request
    (`sample`). Arguments that have a default or may be None are optional inputs. Iterators declare streams. A function
    with one of the decorators is called as that decorator specifies.

    Args:
        source: A function, a method, an object with ``__call__``, or a `ProcessInstance` whose factory is such a class;
            or a list with one for each instance.
        inputs: Replace those of the type hints.
        outputs: Replace those of the type hints.
        config: Settings; whether the model batches and is decoupled follows from the type hints.
        max_batch_size: Replaces that of ``config``.

    Raises:
        PyTritonBadParameterError: A type hint is missing, or does not describe a tensor.
        PyTritonModelConfigError: The settings contradict the type hints.

    Examples:
        >>> from jaxtyping import Float32
        >>> def double(x: Float32[np.ndarray, "batch n"]) -> Float32[np.ndarray, "batch n"]:
        ...     return x * 2
        >>> definition = define(double, max_batch_size=64)
        >>> [tensor.name for tensor in (*definition.inputs, *definition.outputs)]
        ['x', 'output']
    """
    namespace = calling_namespace()
    if callable(source) or isinstance(source, FactoryInstance):
        source = [source]
    defined = [_define(each, namespace, inputs, outputs) for each in source]
    if not defined:
        raise PyTritonBadParameterError("infer_func is an empty list; give a function for each instance.")
    first = defined[0]
    for other in defined[1:]:
        if (other.inputs, other.outputs) != (first.inputs, first.outputs):
            raise PyTritonBadParameterError("The instances of a model have different type hints; make them equal.")
    funcs = [each.infer_func for each in defined]
    assert first.config is not None
    settings = _config(first.config, config, max_batch_size)
    return dataclasses.replace(first, infer_func=funcs if len(funcs) > 1 else funcs[0], config=settings)  # type: ignore[arg-type]


def _define(
    source: InferenceSource, namespace: Namespace, inputs: Sequence[Tensor] | None, outputs: Sequence[Tensor] | None
) -> ModelDefinition:
    function = source if callable(source) else _product_of(source, namespace)
    hints = function_hints(function, namespace)
    batched, infer_func = _infer_func(function, hints)
    if not callable(source):
        created: InferenceSource = dataclasses.replace(
            source, factory=_create, args=(source.factory, source.args, source.kwargs, hints), kwargs={}
        )
    else:
        created = infer_func
    return ModelDefinition(
        created,
        hints.inputs if inputs is None else inputs,
        hints.outputs if outputs is None else outputs,
        ModelConfig(batching=batched, decoupled=hints.result.streams),
    )


def function_hints(function: Callable[..., Any], namespace: Namespace) -> FunctionHints:
    """Reads the type hints of a function.

    Args:
        function: A function, a method, an object with ``__call__``, or an unbound ``__call__`` of a class.
        namespace: Names for annotations besides those of the function's module.

    Raises:
        PyTritonBadParameterError: A type hint is missing, or does not describe a tensor.
    """
    label = f"Function {_name_of(function)!r}"
    if inspect.isclass(function):
        raise PyTritonBadParameterError(f"{label} is a class; pass an object of it, such as {_name_of(function)}().")
    annotated = _annotated(function)
    try:
        annotations = resolved(annotated, namespace)
    except PyTritonBadParameterError as error:
        raise PyTritonBadParameterError(f"{label} {error.message}") from error
    arguments, context = {}, None
    for parameter in _parameters(function):
        if parameter.name == TRITON_CONTEXT_FIELD_NAME or annotations.get(parameter.name) is TritonContext:
            context = parameter.name
        else:
            arguments[parameter.name] = _argument(label, parameter, annotations)
    if "return" not in annotations:
        raise PyTritonBadParameterError(
            f"{label} has no type hint for its result; {ADVICE}, or a TypedDict, dataclass or NamedTuple of these; or "
            "pass inputs=[Tensor(...)] and outputs=[Tensor(...)]."
        )
    try:
        result = result_hint(annotations["return"], namespace)
    except PyTritonBadParameterError as error:
        raise PyTritonBadParameterError(f"{label}: its result {error.message}") from error
    _check_stream(label, annotated, result)
    return FunctionHints(label, arguments, result, context)


def _argument(label: str, parameter: inspect.Parameter, annotations: Mapping[str, Any]) -> ValueHint:
    where = f"{label}: argument {parameter.name!r}"
    if parameter.kind in _VARIADIC:
        raise PyTritonBadParameterError(f"{where} takes any number of values; name each input.")
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise PyTritonBadParameterError(f"{where} cannot be passed by name; remove the '/' after it.")
    if parameter.name not in annotations:
        if parameter.name == "self":
            raise PyTritonBadParameterError(f"{where}: bind the method of an object, not that of the class.")
        raise PyTritonBadParameterError(
            f"{where} has no type hint; {ADVICE}; or pass inputs=[Tensor(...)] and outputs=[Tensor(...)]."
        )
    if type(parameter.default).__module__.partition(".")[0] in _FRAMEWORKS:
        raise PyTritonBadParameterError(
            f"{where} has the default {type(parameter.default).__name__}(...), which is no value for it; write the "
            "value itself, or no default."
        )
    hint = annotations[parameter.name]
    if has_fields(hint):
        raise PyTritonBadParameterError(
            f"{where} is {shown(hint)}, which has fields; make each of them an argument of the function instead."
        )
    try:
        value = value_hint(hint)
    except PyTritonBadParameterError as error:
        raise PyTritonBadParameterError(f"{where} {error.message}") from None
    _check_default(where, hint, parameter.default)
    if value.tensor.name not in (None, parameter.name):
        raise PyTritonBadParameterError(
            f"{where} has a Tensor with the name {value.tensor.name!r}; give both one name, or omit the Tensor's."
        )
    return value._replace(optional=value.optional or parameter.default is not parameter.empty)


def _check_default(where: str, hint: Any, default: Any) -> None:
    """Checks that a default is a value that a client could send."""
    union = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else ()
    plain = next((each for each in (hint, *union) if isinstance(each, type) and each in _KINDS), None)
    if plain is None or default is None or default is inspect.Parameter.empty:
        return
    if not isinstance(default, _KINDS[plain]) or (isinstance(default, bool) and plain is not bool):
        raise PyTritonBadParameterError(
            f"{where} is {shown(hint)}, but its default is {default!r}; write one of that type, or None."
        )


def _check_stream(label: str, function: Callable[..., Any], result: ResultHint) -> None:
    yields = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    if yields and not result.streams:
        kind = "AsyncIterator" if inspect.isasyncgenfunction(function) else "Iterator"
        raise PyTritonBadParameterError(f"{label} yields its results, so it returns {kind}[...]; write that.")


def _infer_func(function: Callable[..., Any], hints: FunctionHints) -> tuple[bool, Callable[..., Any]]:
    """Returns whether the model batches, and its inference callable."""
    top = next_stage(function)
    if top is not None and top._self_takes == REQUESTS:
        return _decorated(function, hints)
    batched = hints.batched
    defaults = {
        parameter.name: None
        for parameter in _parameters(function)
        if parameter.name in hints.arguments
        and hints.arguments[parameter.name].optional
        and parameter.default is parameter.empty
    }
    call = Call(function, _name_of(function), hints.arguments, hints.result, defaults, hints.context)
    infer_func = call.function()
    if hints.context is not None:
        infer_func = triton_context(infer_func)
    if not batched:
        return False, sample(infer_func)
    infer_func = batch(infer_func)
    return True, group_by_keys(infer_func) if any(value.optional for value in hints.arguments.values()) else infer_func


def _decorated(function: Callable[..., Any], hints: FunctionHints) -> tuple[bool, Callable[..., Any]]:
    """Returns the same as `_infer_func`, for a function with decorators, which call it with requests."""
    batched = "batch" in decorators_of(function)
    for name, value in itertools.chain(hints.arguments.items(), hints.result.values.items()):
        if value.decode is not None or value.encode is not None:
            raise PyTritonBadParameterError(
                f"{hints.label}: {name!r} is not a NumPy array, but its decorators pass arrays; remove them, or "
                "annotate an array."
            )
        if value.batched not in (None, batched):
            raise PyTritonBadParameterError(
                f"{hints.label}: {name!r} {'lacks' if batched else 'has'} {BATCH!r} as its first dimension, but the "
                f"function stands below @{'batch' if batched else 'sample'}."
            )
    if hints.result.converted:
        raise PyTritonBadParameterError(
            f"{hints.label}: its decorators take a dictionary of outputs; return a TypedDict, or remove them."
        )
    return batched, function


def _create(
    factory: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], hints: FunctionHints
) -> Callable[..., Any]:
    """Creates the inference callable of a `FactoryInstance`, in its process."""
    return _infer_func(factory(*args, **kwargs), hints)[1]


def _product_of(instance: FactoryInstance, namespace: Namespace) -> Callable[..., Any]:
    """Returns an unbound ``__call__`` with the type hints of the object that the factory of a process creates."""
    factory = instance.factory
    product = factory if inspect.isclass(factory) else resolved(_annotated(factory), namespace).get("return")
    call = getattr(product, "__call__", None) if inspect.isclass(product) else None  # noqa: B004
    if not inspect.isfunction(call):
        raise PyTritonBadParameterError(
            f"{type(instance).__name__}: what its factory {_name_of(factory)!r} creates is known only in the process; "
            "pass inputs=[Tensor(...)] and outputs=[Tensor(...)], or as the factory a class whose __call__ has type "
            "hints."
        )
    return functools.partial(call, None)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise PyTritonBadParameterError(
            f"Function {_name_of(function)!r} has no signature that can be read; pass inputs=[Tensor(...)] and "
            "outputs=[Tensor(...)]."
        ) from error
    given = function.keywords if isinstance(function, functools.partial) else {}
    return [parameter for parameter in parameters if parameter.name not in given]


def _annotated(function: Any) -> Any:
    """Returns the function that has the annotations and whose code runs."""
    while True:
        function = inspect.unwrap(function)
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.isroutine(function):
            return getattr(function, "__func__", function)
        else:
            function = type(function).__call__


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name: str = getattr(function, "__qualname__", None) or type(function).__name__
    return name.rpartition("<locals>.")[2]


def _config(hinted: ModelConfig, config: ModelConfig | None, max_batch_size: int | None) -> ModelConfig:
    """Returns the settings, completed from the type hints."""
    check_instance("config", config, ModelConfig)
    given = config or ModelConfig()
    size = given.max_batch_size if max_batch_size is None else max_batch_size
    if not hinted.batching and size and (max_batch_size is not None or size != ModelConfig().max_batch_size):
        raise PyTritonModelConfigError(
            f"max_batch_size is {size}, but no argument has {BATCH!r} as its first dimension; write one like "
            f'Float32[np.ndarray, "{BATCH} n"], or leave max_batch_size out.'
        )
    decoupled = hinted.decoupled or given.decoupled
    return dataclasses.replace(given, batching=hinted.batching, decoupled=decoupled, max_batch_size=size)


def _quoted(name: str) -> str:
    return name if name.startswith("result ") else f"argument {name!r}"
