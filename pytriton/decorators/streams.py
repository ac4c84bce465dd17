"""Streams: the generators that calls return, and their steps."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextvars import Token
from types import TracebackType
from typing import Any, NoReturn

from pytriton.exceptions import PyTritonValidationError
from pytriton.proxy.context import CALL_FRAME, CallFrame
from pytriton.proxy.tensors.stacked_outputs import StackedOutputs
from pytriton.proxy.types import Response

Stream = Iterator[Any] | AsyncIterator[Any]


def is_stream(value: Any) -> bool:
    """Returns whether a call returned a generator, possibly wrapped by a user's decorator."""
    return isinstance(value, Iterator | AsyncIterator)


def makes_generators(function: Any) -> bool:
    """Returns whether a callable is a generator function or method, plain or asynchronous."""
    return _is_any(inspect.isgeneratorfunction, function) or _is_any(inspect.isasyncgenfunction, function)


def _is_any(kind: Callable[[Any], bool], function: Any) -> bool:
    return kind(function) or kind(getattr(type(function), "__call__", None))  # noqa: B004  (where Python looks for it)


def failing_like(function: Any, error: BaseException) -> Stream | None:
    """Returns a failing stream, for a function that could not create its own; None if it creates none."""
    if _is_any(inspect.isasyncgenfunction, function):
        return _fail_async(error)
    return _fail(error) if _is_any(inspect.isgeneratorfunction, function) else None


def failing_beside(stream: Stream, error: BaseException) -> Stream:
    """Returns a failing stream of the same kind as another one."""
    return _fail_async(error) if isinstance(stream, AsyncIterator) else _fail(error)


def _fail(error: BaseException) -> Iterator[Any]:
    raise error
    yield


async def _fail_async(error: BaseException) -> AsyncIterator[Any]:
    raise error
    yield


class CallScope:
    """Sets the requests that `triton_context` finds during one step of a stream."""

    __slots__ = ("_call", "_token")

    def __init__(self, call: CallFrame) -> None:
        self._call = call

    def __enter__(self) -> None:
        self._token: Token[CallFrame] = CALL_FRAME.set(self._call)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            CALL_FRAME.reset(self._token)
        except ValueError:
            return  # dropped during a step: it ends in another context, where there is nothing to reset


def map_stream(stream: Any, call: CallFrame, change: Callable[[Any], Any]) -> Stream:
    """Returns a generator of the same kind that transforms what the stream yields, and closes the stream with itself.

    Args:
        stream: A plain or asynchronous generator.
        call: The requests that `triton_context` finds while the stream runs.
        change: Applied to each step.
    """
    return _map_async(stream, call, change) if isinstance(stream, AsyncIterator) else _map(stream, call, change)


def _map(stream: Iterator[Any], call: CallFrame, change: Callable[[Any], Any]) -> Generator[Any, None, None]:
    try:
        while True:
            with CallScope(call):
                try:
                    step = next(stream)
                except StopIteration:
                    return
            yield change(step)
    finally:
        with CallScope(call):
            close(stream)


async def _map_async(
    stream: AsyncIterator[Any], call: CallFrame, change: Callable[[Any], Any]
) -> AsyncGenerator[Any, None]:
    try:
        while True:
            with CallScope(call):
                try:
                    step = await stream.__anext__()
                except StopAsyncIteration:
                    return
            yield change(step)
    finally:
        with CallScope(call):
            await aclose(stream)


def close(stream: Any) -> None:
    """Closes a stream that is not asynchronous."""
    if hasattr(stream, "close"):  # other iterators than generators cannot be closed
        stream.close()


async def aclose(stream: Any) -> None:
    """Closes an asynchronous stream."""
    if hasattr(stream, "aclose"):
        await stream.aclose()


class RequestItems:
    """A step with items for some requests of a batch, passed from ``@group_by_values`` to ``@batch``."""

    def __init__(self, items: list[Any]) -> None:
        self.of_requests = items

    def _refuse(self, *_: object) -> NoReturn:
        raise PyTritonValidationError(
            "above @group_by_values around a generator, a step has the outputs of some groups only, which go directly "
            "to @batch: put your own decorator below @group_by_values"
        )

    __getattr__ = __getitem__ = __iter__ = __len__ = _refuse


def items_of(outputs: Any, rows: list[int]) -> list[Any]:
    """Splits the outputs of a step into one item per request.

    Args:
        outputs: A value that a function below ``@batch`` yielded.
        rows: Number of rows of each request.

    Raises:
        PyTritonValidationError: ``outputs`` do not have the requests' rows.
    """
    if type(outputs) is RequestItems:
        return outputs.of_requests
    stacked = StackedOutputs(outputs, rows)
    if isinstance(outputs, Response) and outputs.final:
        return [Response(each, final=True) for each in stacked]
    return list(stacked)
