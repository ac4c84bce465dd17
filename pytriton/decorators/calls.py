"""Calls by decorators: of functions, coroutines and generators, together with their requests."""

from __future__ import annotations

import asyncio
import collections
import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pytriton.constants import TRITON_CONTEXT_FIELD_NAME
from pytriton.decorators.ordering import (
    InferFunc,
)
from pytriton.decorators.streams import CallScope, failing_like, is_stream, map_stream
from pytriton.exceptions import PyTritonInvalidRequestError
from pytriton.proxy.context import CALL_FRAME, CallFrame, TritonContext
from pytriton.proxy.tensors.stacked_outputs import StackedOutputs
from pytriton.proxy.types import Request

_RESULTS = frozenset({dict, list, tuple, StackedOutputs})
"""The usual types of results, which are neither awaitables nor streams."""


def with_data(request: Mapping[str, Any], data: dict[str, Any]) -> Mapping[str, Any]:
    """Returns the request with other inputs."""
    if not isinstance(request, Request):
        return data
    changed = copy.copy(request)
    changed.data = data
    return changed


def call_with(
    call: CallFrame | None, finish: Callable[[Any], Any] | None, function: InferFunc, /, *args: Any, **kwargs: Any
) -> Any:
    """Calls a function in a context in which `triton_context` finds the requests.

    Args:
        call: The requests; None if they are unknown.
        finish: Applied to the result, or to each step of a stream. None if the call is one of several for `gather`:
            then a generator that cannot be created is replaced with one that fails, and a refusal is returned.
        function: The function.
        *args: Its positional arguments.
        **kwargs: Its keyword arguments.
    """
    if call is None:
        call = CALL_FRAME.get()
    elif type(kwargs.get(TRITON_CONTEXT_FIELD_NAME)) is TritonContext:  # from an outer decorator, with more requests
        kwargs[TRITON_CONTEXT_FIELD_NAME] = kwargs[TRITON_CONTEXT_FIELD_NAME]._of(*call)
    token = CALL_FRAME.set(call)
    try:
        returned = function(*args, **kwargs)
    except Exception as error:
        returned = None if finish is not None else failing_like(function, error) or _refusal(error)
        if returned is None:
            raise
    finally:
        CALL_FRAME.reset(token)
    if type(returned) not in _RESULTS:
        if is_awaitable(returned):
            return _await_in(call, finish, returned)
        if finish is not None and is_stream(returned):
            return map_stream(returned, call, finish)
    return returned if finish is None else finish(returned)


async def _await_in(call: CallFrame, finish: Callable[[Any], Any] | None, awaitable: Awaitable[Any]) -> Any:
    with CallScope(call):
        returned = await awaitable
    return returned if finish is None else finish(returned)


def _refusal(error: BaseException) -> PyTritonInvalidRequestError | None:
    """Returns the error if it refuses a request, which then fails alone."""
    return error if isinstance(error, PyTritonInvalidRequestError) else None


def _with_refusals(results: list[Any]) -> list[Any]:
    """Returns the results of calls, refusals among them; raises any other error."""
    for result in results:
        if isinstance(result, BaseException) and _refusal(result) is None:
            raise result
    return results


def is_awaitable(value: Any) -> bool:
    """Returns whether a call returned an awaitable."""
    return type(value) not in _RESULTS and inspect.isawaitable(value)


def gather(returned: list[Any], finish: Callable[[list[Any]], Any], interleave: Callable[[list[Any]], Any]) -> Any:
    """Combines the results of several calls; awaits and cancels awaitables together.

    Args:
        returned: The result of `call_with` for each of the calls.
        finish: Applied to the results; that of a refused call is a `PyTritonInvalidRequestError`.
        interleave: Applied to the results if they are streams.
    """
    if _RESULTS.issuperset(map(type, returned)):
        return finish(returned)
    if not any(map(is_awaitable, returned)):
        return interleave(returned) if any(map(is_stream, returned)) else finish(returned)

    async def await_all() -> Any:
        tasks = [asyncio.ensure_future(each if is_awaitable(each) else _value(each)) for each in returned]
        try:
            return finish(await asyncio.gather(*tasks))
        except PyTritonInvalidRequestError:  # the other calls continue
            return finish(_with_refusals(await asyncio.gather(*tasks, return_exceptions=True)))
        finally:
            for task in tasks:
                task.cancel()

    return await_all()


async def _value(value: Any) -> Any:
    return value


def _owners(call: CallFrame, rows: int) -> list[int] | None:
    """Returns, for each row of a call, the position of its request; None if that is unknown."""
    requests, counts = call
    if counts is None:
        return [0] * rows if len(requests) == 1 else None
    return [position for position, count in enumerate(counts) for _ in range(count)] if sum(counts) == rows else None


def members_of(call: CallFrame, groups: list[list[int]]) -> list[dict[int, int]] | None:
    """Returns, for each group of rows, its requests' positions and how many rows each has; None if unknown."""
    owners = _owners(call, sum(map(len, groups)))
    return None if owners is None else [collections.Counter(owners[row] for row in rows) for rows in groups]


def split_call(call: CallFrame, groups: list[list[int]]) -> list[CallFrame | None]:
    """Returns the requests of each group of rows. Rows are in ascending order, so a request's rows stay together."""
    members = members_of(call, groups)
    if members is None:
        return [None] * len(groups)
    return [([call[0][position] for position in each], list(each.values())) for each in members]


def padded_call(call: CallFrame, rows: int, wanted: int) -> CallFrame | None:
    """Returns the call with additional rows, which belong to the last request."""
    owners = _owners(call, rows)
    if not owners:
        return None
    counts = list(collections.Counter(owners + owners[-1:] * (wanted - rows)).values())
    return call[0], counts
