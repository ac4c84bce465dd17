"""The load of one server, by which a pool is scaled."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import time
from collections.abc import Mapping
from typing import Any

from pytriton.triton import Triton

QUEUE_MS = "queue_ms"
PENDING = "pending"
BUSY = "busy"

_TIMEOUT_S = 2.0
_WAITING = ("nv_inference_pending_request_count{", "pytriton_requests_in_flight{")


@dataclasses.dataclass(frozen=True)
class _Totals:
    """Totals of the server's work at a point in time.

    Attributes:
        time_s: The point in time.
        requests: Number of requests that have left the queue.
        queue_ns: Their total waiting time.
        busy_ns: The computing time per instance, for each model.
    """

    time_s: float
    requests: int
    queue_ns: int
    busy_ns: Mapping[str, float]


class LoadMeter:
    """Measures a server's load between one reading and the next.

    Args:
        triton: The server.
        metrics: ``host:port`` of its metrics; empty if it does not serve them.
    """

    def __init__(self, triton: Triton, metrics: str) -> None:
        self._triton = triton
        self._metrics = metrics
        self._before = self._totals()
        self._queue_ms = 0.0

    def read(self) -> dict[str, float]:
        """Returns the load since the last reading.

        - ``queue_ms``: how long the requests that left Triton's queue had waited there, in milliseconds.
        - ``pending``: requests in the server now.
        - ``busy``: the share of time that the instances of the busiest model were computing.
        """
        now, before = self._totals(), self._before
        self._before = now
        requests, queue_ns = max(0, now.requests - before.requests), max(0, now.queue_ns - before.queue_ns)
        pending = self._pending()
        if requests:
            self._queue_ms = queue_ns / requests / 1e6
        elif not pending:
            self._queue_ms = 0.0  # otherwise, the waiting time of pending requests is unknown
        elapsed_ns = (now.time_s - before.time_s) * 1e9
        busy = max((ns - before.busy_ns.get(model, ns) for model, ns in now.busy_ns.items()), default=0.0)
        return {QUEUE_MS: self._queue_ms, PENDING: pending, BUSY: max(0.0, busy / elapsed_ns)}

    def _totals(self) -> _Totals:
        statistics: list[Mapping[str, Any]] = self._triton.report.statistics()["model_stats"]
        queues = [model["inference_stats"]["queue"] for model in statistics]
        busy_ns: dict[str, float] = {}
        for model in statistics:
            computed_ns = sum(batch["compute_infer"]["ns"] for batch in model["batch_stats"])
            name = model["name"]
            busy_ns[name] = busy_ns.get(name, 0.0) + computed_ns / self._instances(name)
        return _Totals(
            time.monotonic(), sum(each["count"] for each in queues), sum(each["ns"] for each in queues), busy_ns
        )

    def _instances(self, model: str) -> int:
        known = self._triton.report.instances(model)  # None for a model of the user's own repository
        return max(1, known[0]) if known else 1

    def _pending(self) -> float:
        if not self._metrics:
            return 0.0
        connection = http.client.HTTPConnection(self._metrics, timeout=_TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(_WAITING))
