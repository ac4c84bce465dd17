"""Calls that decorators make: of functions and coroutines alike, with the requests that they are made for."""

from __future__ import annotations

import asyncio
import collections
import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pytriton.constants import TRITON_CONTEXT_FIELD_NAME
from pytriton.decorators.stages import (
    InferFunc,
)
from pytriton.proxy.context import CALL, Call, TritonContext
from pytriton.proxy.types import Request


def with_data(request: Mapping[str, Any], data: dict[str, Any]) -> Mapping[str, Any]:
    """The request with other inputs."""
    if not isinstance(request, Request):
        return data
    changed = copy.copy(request)
    changed.data = data
    return changed


def call_with(
    call: Call | None, finish: Callable[[Any], Any] | None, function: InferFunc, /, *args: Any, **kwargs: Any
) -> Any:
    """Calls a function in whose context `triton_context` finds the requests; an awaitable goes on in that context.

    Args:
        call: The requests; None where nothing is known of them.
        finish: Applied to what the function returns.
        function: The function.
        *args: Its arguments.
        **kwargs: Its arguments.
    """
    if call is None:
        call = CALL.get()
    elif type(kwargs.get(TRITON_CONTEXT_FIELD_NAME)) is TritonContext:  # of a decorator further up: of more requests
        kwargs[TRITON_CONTEXT_FIELD_NAME] = TritonContext(kwargs[TRITON_CONTEXT_FIELD_NAME].model_configs, *call)
    token = CALL.set(call)
    try:
        returned = function(*args, **kwargs)
    finally:
        CALL.reset(token)
    if is_awaitable(returned):
        return _await_in(call, finish, returned)
    return returned if finish is None else finish(returned)


async def _await_in(call: Call, finish: Callable[[Any], Any] | None, awaitable: Awaitable[Any]) -> Any:
    token = CALL.set(call)
    try:
        returned = await awaitable
    finally:
        CALL.reset(token)
    return returned if finish is None else finish(returned)


def is_awaitable(value: Any) -> bool:
    """Whether a call returned something that has to be awaited."""
    return type(value) not in (dict, list, tuple) and inspect.isawaitable(value)  # the usual ones take no time


def gather(returned: list[Any], finish: Callable[[list[Any]], Any]) -> Any:
    """Finishes what calls returned; awaits them together, where they are awaitable, and cancels them together."""
    if not any(map(is_awaitable, returned)):
        return finish(returned)

    async def await_all() -> Any:
        tasks = [asyncio.ensure_future(each) for each in returned]
        try:
            return finish(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    return await_all()


def as_they_are(values: list[Any]) -> list[Any]:
    """Finishes calls whose results need nothing more."""
    return values


def _owners(call: Call, rows: int) -> list[int] | None:
    """For each row of a call, the position of the request that it comes from; None where this is not known."""
    requests, counts = call
    if counts is None:
        return [0] * rows if len(requests) == 1 else None
    return [position for position, count in enumerate(counts) for _ in range(count)] if sum(counts) == rows else None


def split_call(call: Call, groups: list[list[int]]) -> list[Call | None]:
    """The requests of each group of rows. Rows are in ascending order, so those of a request stay side by side."""
    owners = _owners(call, sum(map(len, groups)))
    if owners is None:
        return [None] * len(groups)
    members = [collections.Counter(owners[row] for row in rows) for rows in groups]
    return [([call[0][position] for position in each], list(each.values())) for each in members]


def padded_call(call: Call, rows: int, wanted: int) -> Call | None:
    """The last request has the added rows."""
    owners = _owners(call, rows)
    if not owners:
        return None
    counts = list(collections.Counter(owners + owners[-1:] * (wanted - rows)).values())
    return call[0], counts
