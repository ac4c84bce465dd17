"""A model that a worker process has loaded."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from pytriton.proxy.tensors.signature import Signature

if TYPE_CHECKING:
    import asyncio


class LoadedModel(NamedTuple):
    """The result of a LOAD command.

    Attributes:
        infer_func: The inference callable.
        signature: The model's declaration.
        finalize: Called once when the process shuts down.
        is_ready: The model's readiness check, called at any time; None if it has none.
        loop: The event loop that existed when the model was initialized; None to create one.
        model: A weak reference to the model object, to detect its deletion; None if its class does not allow that.
    """

    infer_func: Callable[..., Any]
    signature: Signature
    finalize: Callable[[], None]
    is_ready: Callable[[], bool] | None = None
    loop: asyncio.AbstractEventLoop | None = None
    model: weakref.ReferenceType[Any] | None = None


def reference_to(model: Any) -> weakref.ReferenceType[Any] | None:
    """Returns a weak reference to a model, or None if its class does not allow that."""
    try:
        return weakref.ref(model)
    except TypeError:
        return None
