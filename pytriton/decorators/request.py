"""Decorators that take a list of requests."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import numpy as np

from pytriton.decorators.calls import call_with, gather, with_data
from pytriton.decorators.ordering import (
    ARRAYS,
    REQUESTS,
    Arguments,
    Decorator,
    FunctionT,
    InferFunc,
    Inputs,
    names_of,
    requests_of,
    shown,
    stage_decorator,
)
from pytriton.decorators.side_by_side import SubStream, interleave
from pytriton.decorators.streams import RequestItems, items_of
from pytriton.exceptions import PyTritonBadParameterError, PyTritonInvalidRequestError, PyTritonValidationError
from pytriton.model_config.common import MAX_INT32, DynamicBatcher, check_integer, check_microseconds
from pytriton.model_config.datatypes import BYTES_KINDS
from pytriton.model_config.model_spec import ModelSpec
from pytriton.proxy.context import MODEL
from pytriton.proxy.tensors.batch import common_inputs, stack_requests
from pytriton.proxy.tensors.stacked_outputs import StackedOutputs, by_name
from pytriton.proxy.types import Array, Response

LOGGER = logging.getLogger(__name__)


@overload
def batch(function: FunctionT, /) -> FunctionT: ...


@overload
def batch(
    *, max_batch_size: int | None = None, max_queue_delay_microseconds: int | None = None
) -> Callable[[FunctionT], FunctionT]: ...


def batch(
    function: Any = None,
    /,
    *,
    max_batch_size: int | None = None,
    max_queue_delay_microseconds: int | None = None,
) -> Any:
    """Calls the function once per batch, with each input as one array over all requests.

    The function receives the inputs as keyword arguments, arrays whose first dimension is the batch, and returns the
    outputs as a dictionary by name, or as a list or tuple in the order of the outputs; their first dimension is the
    batch, too. Inputs from the server are not copied. A generator yields such outputs any number of times, each time
    with one response per request.

    Args:
        function: The function; ``@batch`` may be written with parentheses or without.
        max_batch_size: Maximum number of rows in a batch. This and the next are for models that are bound without a
            `ModelConfig`.
        max_queue_delay_microseconds: How long a request may wait for others to join its batch.

    Raises:
        PyTritonBadParameterError: When applied: a setting has an invalid value, or the function is missing.
        PyTritonValidationError: The requests differ in inputs or shapes, or the outputs do not have the batch's rows.
            When applied: it is above a decorator that takes requests.

    Examples:
        >>> @batch
        ... def add(a, b):
        ...     return {"sum": a + b}
        >>> responses = add([{"a": np.ones((2, 3)), "b": np.ones((2, 3))}])
        >>> responses[0]["sum"].shape
        (2, 3)
    """
    settings: dict[str, Any] = {}
    if max_batch_size is not None:
        check_integer("@batch: max_batch_size", max_batch_size, 1, MAX_INT32)
        settings["max_batch_size"] = max_batch_size
    if max_queue_delay_microseconds is not None:
        check_microseconds("@batch: max_queue_delay_microseconds", max_queue_delay_microseconds)
        settings["batcher"] = DynamicBatcher(max_queue_delay_microseconds=max_queue_delay_microseconds)
    if not settings:
        return _batch(function)
    origin = functools.partial(
        batch, max_batch_size=max_batch_size, max_queue_delay_microseconds=max_queue_delay_microseconds
    )
    return stage_decorator("batch", REQUESTS, ARRAYS, None, origin, settings)(_call_batch)(function)


def _call_batch(wrapped: InferFunc, instance: object, args: Arguments, kwargs: Inputs) -> Any:
    requests, rest = requests_of("batch", args)
    inputs, rows = stack_requests(requests)

    def cut(outputs: Any) -> Any:
        if type(outputs) is RequestItems or (rows and type(outputs) is Response and outputs.final):
            return items_of(outputs, rows)
        names = None if type(outputs) is dict else _output_names()
        if rows:
            return StackedOutputs(outputs, rows, names)
        return [outputs if names is None else by_name(outputs, names)]

    return call_with((requests, rows), cut, wrapped, *rest, **inputs, **kwargs)


def _output_names() -> list[str] | None:
    """Returns the names of the outputs of the model that is called; None outside of a call."""
    model = MODEL.get(None)
    return None if model is None else [str(tensor.name) for tensor in model.outputs]


def _by_name(results: list[Any]) -> list[Any]:
    if all(type(each) is dict for each in results):
        return results
    names = _output_names()
    return results if names is None else [by_name(each, names) for each in results]


_batch: Any = stage_decorator("batch", REQUESTS, ARRAYS, None, batch)(_call_batch)
batch.__wrapped__ = _batch  # type: ignore[attr-defined]  # the signature is that of nvidia-pytriton


@stage_decorator("sample", REQUESTS, ARRAYS)
def sample(wrapped: InferFunc, instance: object, args: Arguments, kwargs: Inputs) -> Any:
    """Calls the function once per request, with the request's inputs as keyword arguments.

    It is for models that do not batch. The function returns the outputs as a dictionary by name, or as a list or tuple
    in the order of the outputs. If the model batches, arrays keep their batch dimension. Coroutines work on all
    requests at the same time, and so do generators, each of which yields the responses to one request: asynchronous
    ones as soon as they have one, plain ones in turns. A failing one ends only its own request, as does a function that
    refuses it with `PyTritonInvalidRequestError`.

    Raises:
        PyTritonValidationError: When applied: it is above a decorator that takes requests.

    Examples:
        >>> @sample
        ... def double(x):
        ...     return {"y": x * 2}
        >>> double([{"x": np.ones(3)}])[0]["y"]
        array([2., 2., 2.])
    """
    requests, rest = requests_of("sample", args)

    def interleaved(streams: list[Any]) -> Any:
        sub_streams = [
            SubStream(stream, ([request], None), [position], lambda item: _by_name([item]))
            for position, (stream, request) in enumerate(zip(streams, requests, strict=True))
        ]
        return interleave(sub_streams, len(requests))

    return gather(
        [call_with(([request], None), None, wrapped, *rest, **request, **kwargs) for request in requests],
        _by_name,
        interleaved,
    )


@stage_decorator("group_by_keys", REQUESTS, REQUESTS)
def group_by_keys(wrapped: InferFunc, instance: object, args: Arguments, kwargs: Inputs) -> Any:
    """Calls the function once for each group of requests with the same set of inputs.

    Goes above ``@batch`` if inputs are optional, because ``@batch`` joins only requests with the same inputs.
    Generators of several groups run side by side, as with `sample`; a failing one ends only the requests of its group.

    Raises:
        PyTritonValidationError: The function does not return one response per request. When applied: it is above a
            decorator that takes arrays.

    Examples:
        >>> @group_by_keys
        ... @batch
        ... def describe(a, b=None):
        ...     return {"has_b": np.full((len(a), 1), b is not None)}
        >>> one = np.ones((1, 2))
        >>> [each["has_b"].item() for each in describe([{"a": one}, {"a": one, "b": one}])]
        [False, True]
    """
    requests, rest = requests_of("group_by_keys", args)
    if common_inputs(requests) is not None:
        return wrapped(*args, **kwargs)
    groups: dict[frozenset[str], list[int]] = {}
    for position, request in enumerate(requests):
        groups.setdefault(frozenset(request), []).append(position)
    if len(groups) == 1:
        return wrapped(*args, **kwargs)
    positions = list(groups.values())

    members = [[requests[position] for position in group] for group in positions]

    def join(results: list[Any]) -> list[Any]:
        responses: list[Any] = [None] * len(requests)
        for group, result in zip(positions, results, strict=True):
            for position, response in zip(group, _responses(result, len(group), "return"), strict=True):
                responses[position] = response
        return responses

    def interleaved(streams: list[Any]) -> Any:
        sub_streams = [
            SubStream(stream, (group, None), places, functools.partial(_responses, count=len(group), verb="yield"))
            for stream, group, places in zip(streams, members, positions, strict=True)
        ]
        return interleave(sub_streams, len(requests))

    return gather(
        [call_with((group, None), None, wrapped, group, *rest, **kwargs) for group in members], join, interleaved
    )


def _responses(result: Any, count: int, verb: str) -> Sequence[Any]:
    """Checks that a group's call returned, or its generator yielded, one response per request."""
    if isinstance(result, PyTritonInvalidRequestError):
        return [result] * count
    if not isinstance(result, Sequence) or len(result) != count:
        raise PyTritonValidationError(
            f"@group_by_keys made a call with {count} requests, which {verb}ed {shown(result)}: {verb} a list with "
            "one response per request, or put @batch below"
        )
    return result


def fill_optionals(**defaults: Any) -> Decorator:
    """Fills in default values for optional inputs that a request lacks.

    Goes above ``@batch`` (and above ``@group_by_keys``, which then makes larger groups).

    Args:
        defaults: The value of one sample for each input, without the batch dimension: an array of the input's dtype, or
            anything that NumPy converts to such an array. Strings and bytes are passed as they arrive from clients:
            ``bytes`` in an array of dtype ``object``.

    Raises:
        PyTritonBadParameterError: A default cannot be converted to an array. When the function is bound, or at its
            first call: the model has no such input, or the default has another dtype or shape.
        PyTritonValidationError: When applied: it is above a decorator that takes arrays.

    Examples:
        >>> @fill_optionals(scale=np.array([2.0], dtype=np.float32))
        ... @batch
        ... def multiply(x, scale):
        ...     return {"y": x * scale}
        >>> multiply([{"x": np.ones((1, 1), np.float32)}])[0]["y"]
        array([[2.]], dtype=float32)
    """
    arrays = {name: _as_default(name, value) for name, value in defaults.items()}
    checked: ModelSpec | None = None

    def check(spec: ModelSpec) -> None:
        nonlocal checked
        if checked is not spec:
            for name, default in arrays.items():
                _check_default(name, default, spec)
            checked = spec

    def check_bound(spec: ModelSpec) -> None:
        check(spec)
        _warn_of_required(arrays, spec)

    @stage_decorator("fill_optionals", REQUESTS, REQUESTS, check_bound, functools.partial(fill_optionals, **defaults))
    def decorator(wrapped: InferFunc, instance: object, args: Arguments, kwargs: Inputs) -> Any:
        requests, rest = requests_of("fill_optionals", args)
        spec = MODEL.get(None)
        if spec is not None:
            check(spec)
        names = common_inputs(requests)
        if names is not None and arrays.keys() <= names:
            return wrapped(*args, **kwargs)
        batching = spec is None or spec.batching
        return wrapped([_filled(request, arrays, batching) for request in requests], *rest, **kwargs)

    return decorator


def _filled(request: Mapping[str, Any], defaults: dict[str, Array], batching: bool) -> Mapping[str, Any]:
    """Returns the request with defaults for its missing inputs."""
    missing = {name: default for name, default in defaults.items() if name not in request}
    if not missing:
        return request
    if batching:
        rows = len(next(iter(request.values()))) if len(request) else 1
        added = {name: np.repeat(default[np.newaxis], rows, axis=0) for name, default in missing.items()}
    else:
        added = {name: default.copy() for name, default in missing.items()}
    return with_data(request, dict(request) | added)


def _as_default(name: str, value: Any) -> Array:
    """Converts a default to an array as it would come from a client: strings become bytes."""
    try:
        array = np.asarray(value)
        if array.dtype.kind not in BYTES_KINDS:
            return array
        # Not with NumPy's dtype for bytes, which strips trailing zeros.
        objects = array.astype(object) if isinstance(value, np.ndarray) else np.asarray(value, dtype=object)
    except ValueError as error:
        raise PyTritonBadParameterError(
            f"fill_optionals: the default of {name!r} is {value!r}, which NumPy cannot convert to an array: {error}."
        ) from error
    items = [item.encode() if isinstance(item, str) else item for item in objects.ravel().tolist()]
    for item in items:
        if not isinstance(item, bytes):
            raise PyTritonBadParameterError(
                f"fill_optionals: the default of {name!r} holds {item!r}, which is neither number nor string; pass an "
                "array with the input's dtype."
            )
    filled = np.empty(len(items), object)
    filled[:] = items
    return filled.reshape(objects.shape)


def _warn_of_required(defaults: Mapping[str, Array], spec: ModelSpec) -> None:
    required = [tensor.name for tensor in spec.inputs if tensor.name in defaults and not tensor.optional]
    if required:
        LOGGER.warning(
            "Model %r: fill_optionals has a default for %s, which is not optional, so that Triton refuses requests "
            "without it; declare Tensor(..., optional=True), or drop the default.",
            spec.name,
            names_of(required),
        )


def _check_default(name: str, default: Array, spec: ModelSpec) -> None:
    where = f"Model {spec.name!r}: fill_optionals has a default for {name!r}"
    tensor = next((tensor for tensor in spec.inputs if tensor.name == name), None)
    if tensor is None:
        raise PyTritonBadParameterError(
            f"{where}, but its inputs are {names_of(str(each.name) for each in spec.inputs)}."
        )
    dtype = tensor.datatype.numpy_dtype
    if default.dtype != dtype:
        raise PyTritonBadParameterError(
            f"{where} of dtype {default.dtype}, but the input is {tensor.datatype.name}; "
            f"use a default of dtype {dtype}, as in np.array(..., dtype={dtype.name!r})."
        )
    fits = default.ndim == len(tensor.shape) and all(
        wanted in (-1, size) for wanted, size in zip(tensor.shape, default.shape, strict=True)
    )
    if not fits:
        raise PyTritonBadParameterError(
            f"{where} of shape {default.shape}, but the input has shape {tensor.shape}; use the value of one sample, "
            "without the batch dimension."
        )
