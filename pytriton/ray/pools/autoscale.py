"""Scaling of a pool by the waiting time of requests, and by the load of its instances."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.ray.pools.load import BUSY, PENDING, QUEUE_MS
from pytriton.utils.numbers import is_integer, is_number

_MAX_GROWTH = 3.0  # times the number of replicas, per step
_METRICS_INTERVAL_S = 1.0
_LOOK_BACK_S = 3.0


@dataclasses.dataclass(frozen=True)
class Autoscale:
    """The number of replicas of a pool, depending on its load.

    Replicas are added while requests wait longer than `queue_ms` in Triton's queue, or more of them are pending than
    `max_pending` per replica. One is removed at a time if the others can do its work, too.

    Args:
        min_replicas: The minimum number of replicas, from 1.
        max_replicas: The maximum number.
        queue_ms: How long requests may wait in the queue on average, in milliseconds.
        max_pending: How many requests may be in a replica's server at a time, in its queue or in execution; None for no
            limit. It is meant for coroutines and streams, which take requests out of the queue at once.
        max_busy: The share of time that the instances of the busiest model may compute after removing a replica.
        upscale_delay_s: How long the load must last before replicas are added, in seconds.
        downscale_delay_s: How long the load must be low before a replica is removed, in seconds.

    Raises:
        PyTritonBadParameterError: An argument has an invalid value.

    Examples:
        >>> pool = deploy(build, name="double", autoscale=Autoscale(1, 10, queue_ms=50))  # doctest: +SKIP
    """

    min_replicas: int
    max_replicas: int
    queue_ms: float = 50.0
    max_pending: float | None = None
    max_busy: float = 0.7
    upscale_delay_s: float = 2.0
    downscale_delay_s: float = 30.0

    def __post_init__(self) -> None:
        counts = {"min_replicas": self.min_replicas, "max_replicas": self.max_replicas}
        for name, count in counts.items():
            if not is_integer(count) or count < 1:
                raise PyTritonBadParameterError(f"Autoscale: {name} is {count!r}; give an integer from 1.")
        if self.min_replicas > self.max_replicas:
            raise PyTritonBadParameterError(
                f"Autoscale: min_replicas is {self.min_replicas}, more than max_replicas, {self.max_replicas}."
            )
        positive = {"queue_ms": self.queue_ms, "max_busy": self.max_busy}
        if self.max_pending is not None:
            positive["max_pending"] = self.max_pending
        for name, value in positive.items():
            if not is_number(value) or value <= 0:
                raise PyTritonBadParameterError(f"Autoscale: {name} is {value!r}; give a positive number.")
        for name in ("upscale_delay_s", "downscale_delay_s"):
            value = getattr(self, name)
            if not is_number(value) or value < 0:
                raise PyTritonBadParameterError(f"Autoscale: {name} is {value!r}; give 0 seconds or more.")

    def settings(self, replicas: int | None) -> dict[str, Any]:
        """Returns the settings of Ray Serve.

        Args:
            replicas: The initial number; None for the minimum.
        """
        limits = {"queue_ms": self.queue_ms, "max_pending": self.max_pending, "max_busy": self.max_busy}
        return {
            "min_replicas": self.min_replicas,
            "max_replicas": self.max_replicas,
            "initial_replicas": replicas or self.min_replicas,
            "upscale_delay_s": self.upscale_delay_s,
            "downscale_delay_s": self.downscale_delay_s,
            "metrics_interval_s": _METRICS_INTERVAL_S,
            "look_back_period_s": _LOOK_BACK_S,
            "policy": {
                "policy_function": "pytriton.ray.pools.autoscale:ScalingPolicy",
                "policy_kwargs": limits,
            },
        }


class ScalingPolicy:
    """Ray Serve's policy of a pool; its controller calls it with the load of all replicas.

    Args:
        queue_ms: See `Autoscale`.
        max_pending: See `Autoscale`.
        max_busy: See `Autoscale`.
    """

    def __init__(self, queue_ms: float, max_pending: float | None, max_busy: float) -> None:
        self._queue_ms = queue_ms
        self._max_pending = max_pending
        self._max_busy = max_busy

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Returns the desired number of replicas, and an empty state."""
        return self.replicas(context.aggregated_metrics or {}, context.target_num_replicas), {}

    def replicas(self, load: Mapping[str, Mapping[Any, float]], target: int) -> int:
        """Returns the desired number of replicas.

        Args:
            load: The load by measure and replica.
            target: The previous desired number; some replicas may still be starting.
        """
        queues, pending, busy = (list(load.get(name, {}).values()) for name in (QUEUE_MS, PENDING, BUSY))
        if not queues:
            return target
        excess = sum(queues) / len(queues) / self._queue_ms
        if self._max_pending is not None:
            excess = max(excess, sum(pending) / len(queues) / self._max_pending)
        if excess > 1:
            return max(target, math.ceil(len(queues) * min(excess, _MAX_GROWTH)))
        can_do_without = sum(busy) <= (target - 1) * self._max_busy
        would_wait = self._max_pending is not None and sum(pending) > (target - 1) * self._max_pending
        return target - 1 if target > 1 and can_do_without and not would_wait else target
