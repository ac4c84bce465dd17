"""A model that a worker process has loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pytriton.proxy.tensors.signature import Signature


class LoadedModel(NamedTuple):
    """What an order to load makes.

    Attributes:
        infer_func: The inference callable.
        signature: What is declared of the model.
        finalize: Called once when the process ends in order.
        is_ready: Whether it can infer; asked at any time. None has nobody ask.
    """

    infer_func: Callable[..., Any]
    signature: Signature
    finalize: Callable[[], None]
    is_ready: Callable[[], bool] | None = None
