"""What an inference callable is: how it is called, and how many batches it takes at a time."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable
from typing import Any

from pytriton.exceptions import PyTritonBadParameterError, PyTritonModelConfigError
from pytriton.model_config.model_spec import ModelSpec

MAX_IN_FLIGHT = 256
"""Batches that an instance of a coroutine or of an async generator takes at a time, unless its model says otherwise.

So many may also wait for deferred answers.
"""

MAX_THREADS = 32
"""Batches that an instance of a generator takes at a time, each in a thread, unless its model says otherwise."""


class CallableKind(enum.Enum):
    """Whether an inference callable returns or yields, and whether it has to be awaited."""

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
        """Whether it gives responses one after the other."""
        return self in (CallableKind.GENERATOR, CallableKind.ASYNC_GENERATOR)


def callable_kind(infer_func: Callable[..., Any]) -> CallableKind:
    """What an inference callable is: a function, a method, a partial of one, or an object with ``__call__``.

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
    """Checks that an inference callable is one, and fits its model.

    Raises:
        PyTritonBadParameterError: It cannot be called.
        PyTritonModelConfigError: It yields responses, and the model is not decoupled.
    """
    if not callable(infer_func):
        raise PyTritonBadParameterError(
            f"Model {spec.name!r}: infer_func is {infer_func!r}, which cannot be called; give a function, or a list of "
            "functions for several instances."
        )
    kind = callable_kind(infer_func)
    if kind.yields and not spec.decoupled:
        raise PyTritonModelConfigError(
            f"Model {spec.name!r}: infer_func is {kind.value}, which may answer a request with several responses; set "
            "ModelConfig(decoupled=True), or return the responses instead of yielding them."
        )


def is_deferred(infer_func: Callable[..., Any]) -> bool:
    """Whether an inference callable may return, or its coroutine end, before its requests have been answered.

    It has the attribute ``deferred``, and is called with the requests and a function by which it answers them, from
    any thread and at any time: ``answer(request, item, final)``, with the number of the request and a response, an
    exception or, for the end alone, None. What it returns is None, or a list with one of these for each request, where
    None stands for one that is still to be answered. Called again for a request that has ended, ``answer`` does
    nothing. With ``later=True`` it takes no lock, so that a destructor may call it.
    """
    return bool(getattr(infer_func, "deferred", False))


def joins_requests(infer_func: Callable[..., Any]) -> bool:
    """Whether an inference callable is a decorator that makes arguments of a batch's requests.

    Such are functions and methods below ``@batch`` and ``@sample``, whose types have ``_self_joins_requests``. They
    may be given a `WholeBatch`.
    """
    bound_from = getattr(infer_func, "_self_parent", None)  # where it is a method of an object
    decorator = infer_func if bound_from is None else bound_from
    return bool(getattr(type(decorator), "_self_joins_requests", False))


def max_in_flight_of(kind: CallableKind, *, decoupled: bool, wanted: int | None, deferred: bool = False) -> int:
    """How many batches an instance takes at a time.

    Args:
        kind: What its inference callable is.
        decoupled: Whether the model is.
        wanted: What the model says, or None.
        deferred: Whether it may answer requests after it has returned.

    Returns:
        The number; 0 where it takes one, and answers all of it at once.
    """
    if deferred:
        return wanted or MAX_IN_FLIGHT
    if kind is CallableKind.FUNCTION:
        return 1 if decoupled else 0
    return wanted or (MAX_IN_FLIGHT if kind.is_async else MAX_THREADS)
