"""Decorators that take arrays, below ``@batch`` or ``@sample``."""

from __future__ import annotations

import collections
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pytriton.constants import TRITON_CONTEXT_FIELD_NAME
from pytriton.decorators.calls import call_with, gather, is_awaitable, members_of, padded_call, split_call, with_data
from pytriton.decorators.ordering import (
    ARRAYS,
    FIRST_VALUES,
    Arguments,
    Decorator,
    FunctionT,
    InferFunc,
    Inputs,
    arrays_of,
    names_of,
    requests_of,
    shown,
    stage_decorator,
)
from pytriton.decorators.side_by_side import SubStream, interleave
from pytriton.decorators.streams import RequestItems, Stream, failing_beside, items_of, makes_generators
from pytriton.exceptions import (
    PyTritonArrayError,
    PyTritonBadParameterError,
    PyTritonInvalidRequestError,
    PyTritonRuntimeError,
    PyTritonValidationError,
)
from pytriton.model_config.datatypes import BYTES_KINDS
from pytriton.model_config.model_spec import ModelSpec
from pytriton.proxy.context import CALL_FRAME, CallFrame, current_context
from pytriton.proxy.types import Array, Response

LOGGER = logging.getLogger(__name__)

_PadFunction = Callable[[list[Inputs]], Sequence[Inputs]]


class _MissingInputError(PyTritonValidationError, KeyError):
    """An input is missing in a call. Also a KeyError, which callers may expect."""


def group_by_values(*keys: str, pad_fn: _PadFunction | None = None) -> Callable[[FunctionT], FunctionT]:
    """Calls the function once for each group of rows with the same values in some inputs, and joins the outputs.

    Goes below ``@batch``. It is for inputs of which a model accepts only one value at a time, such as a temperature.
    Generators of several groups run side by side, each for the requests whose rows are in its group: their outputs are
    not joined, and a request whose rows differ in these inputs fails.

    Args:
        keys: Names of the inputs by whose values rows are grouped.
        pad_fn: Pads the outputs of all groups to a common shape: takes and returns a list with a dictionary of arrays
            per group. See `ConstantPadder`. Not for generators.

    Raises:
        PyTritonBadParameterError: No keys are given, or a ``pad_fn`` for a generator. When the function is bound: the
            model has no such input.
        PyTritonValidationError: During a call: an input is missing, or the outputs of the groups cannot be joined. When
            applied: it is above a decorator that takes requests.

    Examples:
        >>> @batch
        ... @group_by_values("power")
        ... def raise_to(x, power):
        ...     return {"y": x ** power[0]}
        >>> requests = [{"x": np.array([[3]]), "power": np.array([[p]])} for p in (1, 2)]
        >>> [each["y"].item() for each in raise_to(requests)]
        [3, 9]
    """
    if isinstance(pad_fn, type) or not (pad_fn is None or callable(pad_fn)):
        raise PyTritonBadParameterError(
            f"group_by_values has pad_fn={getattr(pad_fn, '__name__', repr(pad_fn))}, which is not a function that "
            "pads; use an object, such as pad_fn=ConstantPadder(0)."
        )
    if not keys or not all(isinstance(key, str) for key in keys):
        raise PyTritonBadParameterError(
            f"group_by_values was given {keys!r}; give it the names of the inputs to group by, as in "
            'group_by_values("temperature").'
        )

    def check(spec: ModelSpec) -> None:
        if problem := _problem_of_keys("group_by_values", keys, spec):
            raise PyTritonBadParameterError(problem)

    @stage_decorator("group_by_values", ARRAYS, ARRAYS, check, functools.partial(group_by_values, *keys, pad_fn=pad_fn))
    def decorator(wrapped: InferFunc, instance: object, args: Arguments, kwargs: Inputs) -> Any:
        arrays = arrays_of("group_by_values", args, kwargs)
        for key in keys:
            if key not in arrays:
                raise _MissingInputError(
                    f"group_by_values({key!r}): the call has no such input, but {names_of(arrays)}; if it is "
                    f"optional, put @fill_optionals({key}=...) above @batch"
                )
        members: dict[tuple[Any, ...], list[int]] = {}
        for row, values in enumerate(zip(*(arrays[key] for key in keys), strict=True)):
            members.setdefault(tuple(map(_hashable, values)), []).append(row)
        groups = list(members.values())
        if len(groups) <= 1:
            result = wrapped(*args, **kwargs)
            rows = groups[0] if groups else []
            return _await_for_rows(result, rows) if is_awaitable(result) else _for_rows(result, rows)
        whole = CALL_FRAME.get()
        calls = split_call(whole, groups)
        results = [
            call_with(
                call, None, wrapped, *args, **kwargs | {name: array[_index(rows)] for name, array in arrays.items()}
            )
            for call, rows in zip(calls, groups, strict=True)
        ]
        return gather(
            results,
            lambda done: _join_groups(done, groups, pad_fn),
            lambda streams: _interleave_groups(streams, whole, groups, keys, pad_fn),
        )

    def apply(wrapped: FunctionT) -> FunctionT:
        if pad_fn is not None and makes_generators(wrapped):
            raise _padded_generator(keys)
        return decorator(wrapped)

    return apply


class ConstantPadder:
    """Pads arrays with a constant, at the end of each dimension, to the largest of their shapes.

    For `group_by_values`. The first dimension, the batch, is not changed.

    Args:
        pad_value: The value to add. If it is a number, arrays of bytes or strings are padded with empty elements.

    Examples:
        >>> padded = ConstantPadder(0)([{"y": np.ones((1, 1))}, {"y": np.ones((1, 2))}])
        >>> padded[0]["y"]
        array([[1., 0.]])
    """

    def __init__(self, pad_value: Any = 0) -> None:
        self.pad_value = pad_value

    def __call__(self, batches_list: Sequence[Mapping[Any, Array]]) -> list[dict[Any, Array]]:
        """Pads the arrays of each name to a common shape.

        Args:
            batches_list: Dictionaries of arrays by name.

        Raises:
            PyTritonArrayError: Arrays of one name differ in their number of dimensions, or the value does not fit
                their dtype.
        """
        widest: dict[Any, tuple[int, ...]] = {}
        for each in batches_list:
            for name, array in each.items():
                shape = array.shape[1:]
                largest = widest.get(name, shape)
                if len(shape) != len(largest):
                    raise PyTritonArrayError(
                        f"ConstantPadder: the arrays {name!r} have {len(largest) + 1} and {array.ndim} dimensions, and "
                        "only their sizes may differ; return arrays with the same number of dimensions"
                    )
                widest[name] = tuple(map(max, largest, shape))
        return [
            {name: self._padded(name, array, widest[name]) for name, array in each.items()} for each in batches_list
        ]

    def _padded(self, name: Any, array: Array, shape: tuple[int, ...]) -> Array:
        if array.shape[1:] == shape:
            return array
        value, dtype = self.pad_value, array.dtype
        if dtype.kind in BYTES_KINDS:
            if not isinstance(value, str | bytes):
                value = b"" if dtype.kind in "OS" else ""
            if dtype.kind == "S" and isinstance(value, str):
                value = value.encode()
            elif dtype.kind == "U" and isinstance(value, bytes):
                value = value.decode()
            if dtype.kind in "SU":  # wide enough for the padding value
                dtype = np.promote_types(dtype, np.asarray(value).dtype)
        try:
            padded = np.full((array.shape[0], *shape), value, dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise PyTritonArrayError(
                f"ConstantPadder({value!r}) cannot pad the array {name!r}, whose dtype is {dtype}; use a value of "
                "that dtype"
            ) from error
        padded[tuple(slice(size) for size in array.shape)] = array
        return padded


@stage_decorator("pad_batch", ARRAYS, ARRAYS)
def pad_batch(wrapped: InferFunc, instance: object, args: Arguments, kwargs: Inputs) -> Any:
    """Pads batches to a preferred size by repeating the last row, and removes the padding from the outputs.

    Goes below ``@batch``. The size is the smallest of ``DynamicBatcher.preferred_batch_size`` and
    ``ModelConfig.max_batch_size`` that holds the batch. It is for models that are compiled for a few batch sizes.

    Raises:
        PyTritonContextError: The call does not come from the server.
        PyTritonValidationError: When applied: it is above a decorator that takes requests.
    """
    arrays = arrays_of("pad_batch", args, kwargs)
    spec = current_context("@pad_batch").model_config
    rows = len(next(iter(arrays.values()))) if arrays and spec.batching else 0
    sizes = [*([] if spec.batcher is None else spec.batcher.preferred_sizes), spec.max_batch_size]
    wanted = min((size for size in sizes if size >= rows), default=rows)
    if not rows or wanted == rows:
        return wrapped(*args, **kwargs)
    padded = {
        name: np.concatenate([array, np.repeat(array[-1:], wanted - rows, axis=0)]) for name, array in arrays.items()
    }

    call = padded_call(CALL_FRAME.get(), rows, wanted)

    def cut(outputs: Any) -> Any:
        if type(outputs) is not RequestItems:
            return _without_padding(outputs, rows, wanted)
        *others, last = outputs.of_requests  # the last request has the padding
        last_rows = call[1][-1] if call is not None and call[1] else wanted
        return RequestItems([*others, _without_padding(last, last_rows - (wanted - rows), last_rows)])

    return call_with(call, cut, wrapped, *args, **kwargs | padded)


def first_value(*keys: str, squeeze_single_values: bool = True, strict: bool = True) -> Decorator:
    """Passes the first row of an input instead of the whole array.

    Goes below ``@batch`` (or above a function that takes requests, whose inputs it then replaces request by request).
    It is for inputs that are the same in a whole batch, as after `group_by_values`.

    Args:
        keys: Names of the inputs. Inputs that are missing in a call are ignored; for those that the model lacks, a
            warning is logged when the function is bound.
        squeeze_single_values: Pass a single number or string as a scalar instead of an array.
        strict: Raise an error if rows differ.

    Raises:
        PyTritonBadParameterError: A key is not the name of an input.
        PyTritonRuntimeError: During a call: rows differ, or there are none.
        PyTritonValidationError: When applied: it is above another decorator that takes requests or arrays.

    Examples:
        >>> @batch
        ... @first_value("power")
        ... def raise_to(x, power):
        ...     return {"y": x ** power}
        >>> raise_to([{"x": np.array([[3]]), "power": np.array([[2]])}])[0]["y"].item()
        9
    """
    for key in keys:
        if not isinstance(key, str) or not key or key == TRITON_CONTEXT_FIELD_NAME:
            raise PyTritonBadParameterError(
                f"first_value cannot take the first value of {key!r}; use names of inputs, as in "
                'first_value("temperature").'
            )

    def check(spec: ModelSpec) -> None:
        if problem := _problem_of_keys("first_value", keys, spec):
            LOGGER.warning("%s", problem)

    def taken(inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {key: _first(key, inputs[key], squeeze_single_values, strict) for key in keys if key in inputs}

    origin = functools.partial(first_value, *keys, squeeze_single_values=squeeze_single_values, strict=strict)

    @stage_decorator("first_value", None, FIRST_VALUES, check, origin)
    def decorator(wrapped: InferFunc, instance: object, args: Arguments, kwargs: Inputs) -> Any:
        if not any(isinstance(arg, Sequence) for arg in args):
            return wrapped(*args, **kwargs | taken(kwargs))
        requests, rest = requests_of("first_value", args)
        return wrapped([with_data(each, dict(each) | taken(each)) for each in requests], *rest, **kwargs)

    return decorator


def _problem_of_keys(decorator: str, keys: Sequence[str], spec: ModelSpec) -> str | None:
    """Describes keys that are not the names of inputs; returns None if all are."""
    inputs = [tensor.name for tensor in spec.inputs]
    unknown = [key for key in keys if key not in inputs]
    if not unknown:
        return None
    return (
        f"Model {spec.name!r}: @{decorator} has {names_of(unknown)}, and the inputs are {names_of(inputs)}; use names "
        "of inputs, or add an input."
    )


def _hashable(value: Any) -> Any:
    """Returns a key for a row's value in a dictionary."""
    array = np.asarray(value)
    content = tuple(array.ravel().tolist()) if array.dtype.hasobject else array.tobytes()
    return array.shape, content


def _index(rows: list[int]) -> Any:
    """Returns consecutive rows as a slice, which makes no copy."""
    return slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] + 1 == len(rows) else rows


def _for_rows(outputs: Any, rows: list[int]) -> Any:
    """Repeats outputs of a single row for all rows of a group, as nvidia-pytriton does."""
    if not isinstance(outputs, Mapping | list | tuple):
        return outputs
    named = _by_name(outputs)
    single = [name for name, array in named.items() if isinstance(array, np.ndarray) and array.shape[:1] == (1,)]
    if not single or len(rows) <= 1:
        return outputs
    named |= {name: np.broadcast_to(named[name], (len(rows), *named[name].shape[1:])) for name in single}
    return named if isinstance(outputs, Mapping) else list(named.values())


async def _await_for_rows(outputs: Awaitable[Any], rows: list[int]) -> Any:
    return _for_rows(await outputs, rows)


def _join_groups(results: list[Any], groups: list[list[int]], pad_fn: _PadFunction | None) -> Any:
    """Joins the outputs of groups of rows in the order of the rows."""
    for each in results:
        if isinstance(each, PyTritonInvalidRequestError):
            raise each
    named = [_by_name(_for_rows(each, rows)) for each, rows in zip(results, groups, strict=True)]
    if pad_fn is not None:
        named = [dict(each) for each in pad_fn(named)]
    if len(named) != len(groups) or any(each.keys() != named[0].keys() for each in named):
        raise PyTritonValidationError(
            f"@group_by_values made {len(groups)} calls, whose outputs {'after pad_fn ' if pad_fn else ''}are "
            f"{' and '.join(names_of(each) for each in named)}: return the same outputs from each"
        )
    order = np.argsort(np.concatenate(groups))
    joined = {}
    for name in named[0]:
        arrays = [each[name] for each in named]
        for array, rows in zip(arrays, groups, strict=True):
            if not isinstance(array, np.ndarray) or array.shape[:1] != (len(rows),):
                raise PyTritonArrayError(
                    f"@group_by_values made a call with {len(rows)} rows, whose output {name!r} is {shown(array)}: "
                    "return an array with as many rows"
                )
        if len({array.shape[1:] for array in arrays}) > 1:
            raise PyTritonArrayError(
                f"the groups' outputs {name!r} have shapes {[array.shape for array in arrays]}, which cannot be "
                "joined: pass pad_fn=ConstantPadder() to group_by_values"
            )
        joined[name] = np.concatenate(arrays)[order]
    return joined if isinstance(results[0], Mapping) else list(joined.values())


def _interleave_groups(
    streams: list[Any], call: CallFrame, groups: list[list[int]], keys: tuple[str, ...], pad_fn: _PadFunction | None
) -> Stream:
    """Runs the generators of groups of rows side by side, each for the requests of its rows."""
    if pad_fn is not None:
        raise _padded_generator(keys)
    members = members_of(call, groups)
    if members is None:
        raise PyTritonValidationError(
            f"@group_by_values made {len(groups)} generators, but does not know which requests they serve: put "
            "@batch above it, and pass on the rows that @batch passes"
        )
    counts = collections.Counter(position for each in members for position in each)
    spread = [position for position, count in counts.items() if count > 1]
    error = PyTritonValidationError(
        f"a request has rows with different values of {names_of(keys)}, whose responses cannot be joined: send one row "
        "per request, or rows that have the same values"
    )
    if len(spread) == len(call[0]):
        raise error
    sub_streams = [
        SubStream(
            stream,
            ([call[0][position] for position in each], list(each.values())),
            [None if position in spread else position for position in each],
            functools.partial(items_of, rows=list(each.values())),
        )
        for stream, each in zip(streams, members, strict=True)
    ]
    sub_streams += [
        SubStream(failing_beside(streams[0], error), ([call[0][position]], None), [position], list)
        for position in spread
    ]
    return interleave(sub_streams, len(call[0]), RequestItems)


def _padded_generator(keys: tuple[str, ...]) -> PyTritonBadParameterError:
    return PyTritonBadParameterError(
        f"group_by_values({', '.join(map(repr, keys))}) has a pad_fn, but wraps a generator, and the outputs of "
        "generators are not joined: omit pad_fn."
    )


def _without_padding(outputs: Any, rows: int, padded_rows: int) -> Any:
    def cut(array: Any) -> Any:
        try:
            return array[:rows] if len(array) == padded_rows else array
        except TypeError:  # a number, which is refused later
            return array

    if isinstance(outputs, Mapping):
        named = {name: cut(array) for name, array in outputs.items()}
        return Response(named, outputs.final) if isinstance(outputs, Response) else named
    return list(map(cut, outputs)) if isinstance(outputs, list | tuple) else outputs


def _by_name(outputs: Any) -> Inputs:
    """Returns outputs by name, or by their position."""
    if isinstance(outputs, Mapping):
        return dict(outputs)
    if isinstance(outputs, list | tuple):
        return dict(enumerate(outputs))  # type: ignore[arg-type]
    raise PyTritonValidationError(
        f"@group_by_values made a call that returned {shown(outputs)}: return a dictionary of arrays by output name, "
        "or a list or tuple of arrays in the order of the outputs"
    )


def _first(key: str, array: Any, squeeze: bool, strict: bool) -> Any:
    rows = np.asarray(array)
    if not rows.ndim:
        return rows[()]
    if not len(rows):
        raise PyTritonRuntimeError(f"first_value({key!r}): this input has no rows; send at least one")
    first = rows[0]
    # NaN does not equal itself, but is treated as one value.
    if strict and not np.all(rows == first) and len(set(map(_hashable, rows))) > 1:
        raise PyTritonRuntimeError(
            f"first_value({key!r}): the rows of this input differ; put @group_by_values({key!r}) above it, or pass "
            "strict=False"
        )
    return np.asarray(first).reshape(-1)[0] if squeeze and np.size(first) == 1 else first
