"""The kinds of inference callables, and the number of batches that each serves at a time."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from pytriton.exceptions import PyTritonBadParameterError, PyTritonBindError, PyTritonModelConfigError
from pytriton.model_config.model_spec import ModelSpec
from pytriton.proxy.tensors.batch import Batch, WholeBatch
from pytriton.proxy.types import Request
from pytriton.proxy.wire.registration import ExecutionMode

MAX_IN_FLIGHT = 256
"""Default number of batches that an instance of a coroutine or an async generator serves at a time."""

MAX_DEFERRED = 10_000
"""Default number of batches whose responses may follow after the callable has returned."""

MAX_THREADS = 32
"""Default number of batches that an instance of a generator serves at a time, each in its own thread."""


_RESULTS = (Iterator, AsyncIterator, Sequence)  # a class that is an inference callable is a subclass of one


class CallableKind(enum.Enum):
    """The kind of an inference callable: whether it returns or yields, and whether it is awaited."""

    FUNCTION = "a function"
    COROUTINE = "a coroutine function"
    GENERATOR = "a generator function"
    ASYNC_GENERATOR = "an async generator function"

    @property
    def is_async(self) -> bool:
        """Whether it runs in an event loop."""
        return self in (CallableKind.COROUTINE, CallableKind.ASYNC_GENERATOR)

    @property
    def yields(self) -> bool:
        """Whether it yields responses one after another."""
        return self in (CallableKind.GENERATOR, CallableKind.ASYNC_GENERATOR)


def callable_kind(infer_func: Callable[..., Any]) -> CallableKind:
    """Returns the kind of an inference callable: a function, a method, a partial, or an object with ``__call__``.

    Examples:
        >>> async def infer(requests): ...
        >>> callable_kind(infer)
        <CallableKind.COROUTINE: 'a coroutine function'>
    """
    while isinstance(infer_func, functools.partial):
        infer_func = infer_func.func
    for candidate in (infer_func, getattr(infer_func, "__call__", None)):  # noqa: B004
        if inspect.isasyncgenfunction(candidate):
            return CallableKind.ASYNC_GENERATOR
        if inspect.iscoroutinefunction(candidate):
            return CallableKind.COROUTINE
        if inspect.isgeneratorfunction(candidate):
            return CallableKind.GENERATOR
    return CallableKind.FUNCTION


def check_callable(infer_func: object, spec: ModelSpec) -> None:
    """Checks that an inference callable is callable and fits its model.

    Raises:
        PyTritonBindError: It is not callable.
        PyTritonBadParameterError: It is a class.
        PyTritonModelConfigError: It yields responses, but the model is not decoupled.
    """
    if not callable(infer_func):
        raise PyTritonBindError(
            f"Model {spec.name!r}: infer_func is {infer_func!r}, which is not callable; pass a function, or a list of "
            "functions for several instances."
        )
    if isinstance(infer_func, type) and not issubclass(inspect.unwrap(infer_func), _RESULTS):
        raise PyTritonBadParameterError(
            f"Model {spec.name!r}: infer_func is the class {infer_func.__name__}; pass an object of it, such as "
            f"{infer_func.__name__}()."
        )
    kind = callable_kind(infer_func)
    if kind.yields and not spec.decoupled:
        raise PyTritonModelConfigError(
            f"Model {spec.name!r}: infer_func is {kind.value}, which may send several responses to a request; set "
            "ModelConfig(decoupled=True), or return the responses instead of yielding them."
        )


def is_deferred(infer_func: Callable[..., Any]) -> bool:
    """Returns whether an inference callable may send responses after it, or its coroutine, has returned.

    Such a callable has the attribute ``_pytriton_deferred``. It is called with the requests and a function that sends
    responses from any thread at any time: ``respond(request, item, final)``, with the number of the request and a
    response, an exception or, to end the request, None. It returns None, or a list with one of these for each request,
    where None means that the request is still open. For a request that has ended, ``respond`` does nothing. With
    ``later=True`` it takes no lock, so that a destructor may call it.
    """
    return getattr(infer_func, "_pytriton_deferred", None) is True


def requests_for(infer_func: Callable[..., Any]) -> Callable[[Batch], Sequence[Request]]:
    """Returns the function that turns a batch into a callable's argument: a list of requests, or a `WholeBatch`.

    The latter is for decorators that convert a batch's requests to arguments: functions and methods under ``@batch``
    and ``@sample``, whose types have ``_self_joins_requests``. Decorators directly above them, whose types have
    ``_self_passes_requests``, pass it on. A user's wrapper receives a list.
    """
    decorator = _unbound(infer_func)
    while getattr(type(decorator), "_self_passes_requests", False):
        decorator = _unbound(decorator.__wrapped__)
    return WholeBatch if getattr(type(decorator), "_self_joins_requests", False) else Batch.requests


def _unbound(decorator: Any) -> Any:
    """Returns the decorator of a bound method; any other object unchanged."""
    bound_from = getattr(decorator, "_self_parent", None)
    return decorator if bound_from is None else bound_from


def execution_mode(
    kind: CallableKind, *, decoupled: bool, wanted: int | None, deferred: bool = False
) -> tuple[ExecutionMode, int]:
    """Returns the execution mode of an instance.

    Args:
        kind: The kind of its inference callable.
        decoupled: Whether the model is decoupled.
        wanted: The number of batches in flight in the model's settings, or None.
        deferred: Whether the callable may send responses after it has returned.

    Returns:
        The mode, and the number of batches that the instance serves at a time.
    """
    if deferred:
        if kind.is_async:
            return ExecutionMode.CONCURRENT, wanted or (MAX_DEFERRED if decoupled else MAX_IN_FLIGHT)
        return ExecutionMode.DEFERRED, wanted or MAX_DEFERRED
    if kind is CallableKind.FUNCTION:
        return ExecutionMode.CONCURRENT if decoupled else ExecutionMode.SEQUENTIAL, 1
    return ExecutionMode.CONCURRENT, wanted or (MAX_IN_FLIGHT if kind.is_async else MAX_THREADS)
