"""Waits until models that are being unloaded have served their requests."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pytriton.models.model import BoundModel

_POLL_S = 0.01
_QUIET_S = 0.3
_BUSY_S = 0.05  # after a model's last request: the next one may be on its way
_FRESH_S = 0.25  # maximum age of a process's status
_LAST_CALL_S = 2.0  # for streams that are still running


def wait_until_served(models: Sequence[BoundModel], deadline: float) -> list[str]:
    """Waits until models that are being unloaded have served their requests, and ends streams that take too long.

    Args:
        models: The models.
        deadline: The ``time.monotonic()`` until which requests may finish.

    Returns:
        The names of models that were still serving requests at the deadline.
    """
    # An instance disconnects once it has served its requests. But Triton keeps it while clients keep open gRPC streams
    # on which they have sent requests to it, even if these have been served. It accepts no new ones, and passes queued
    # ones to idle callables.
    return _wait_until_quiet(models, deadline, _QUIET_S + max(map(_queue_delay_s, models), default=0))


def wait_until_quiet(models: Sequence[BoundModel], deadline: float) -> list[str]:
    """Waits until models that were recently busy, and that the server keeps, have been idle for a while.

    Args:
        models: The models.
        deadline: The ``time.monotonic()`` until which requests may finish.

    Returns:
        The names of models that were still serving requests at the deadline.
    """
    now = time.monotonic()
    return _wait_until_quiet([model for model in models if now - model.idle_since() < _BUSY_S], deadline, _QUIET_S)


def _wait_until_quiet(models: Sequence[BoundModel], deadline: float, quiet_s: float) -> list[str]:
    start = time.monotonic()
    last_call = deadline - min(_LAST_CALL_S, (deadline - start) / 2)
    while any(model.connections for model in models):
        now = time.monotonic()
        if now > deadline:
            return [model.spec.name for model in models if model.connections and now - model.idle_since() < _FRESH_S]
        if now - max([start, *(model.idle_since() for model in models)]) > quiet_s:
            return []
        if now > last_call:
            last_call = deadline
            for model in models:
                model.end_streams()
        time.sleep(_POLL_S)
    return []


def _queue_delay_s(model: BoundModel) -> float:
    batcher = model.spec.batcher
    return 0 if batcher is None else batcher.max_queue_delay_microseconds / 1e6
