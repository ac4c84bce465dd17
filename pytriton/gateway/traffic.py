"""Figures of the requests to each model through the gateway: rates, latencies and the last errors."""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Sequence
from typing import Any

_KEPT = 1000  # latencies per model
_ERRORS = 5  # per model
_WINDOW_S = 60.0
_QUANTILES = (0.5, 0.95, 0.99)
_MAX_MESSAGE = 500


@dataclasses.dataclass
class _ModelTraffic:
    requests: int = 0
    failed: int = 0
    ended: collections.deque[tuple[float, float]] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_KEPT)
    )
    """When each of the last requests ended, and how long it took, in seconds."""
    errors: collections.deque[dict[str, Any]] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_ERRORS)
    )


class Traffic:
    """Records requests; used in one event loop."""

    def __init__(self) -> None:
        self._models: dict[str, _ModelTraffic] = {}

    def record(self, model: str, started: float, status: int = 200, message: str = "", sender: str = "") -> None:
        """Records the end of a request.

        Args:
            model: The model, which must exist: clients must not fill the memory with names.
            started: When it began, on the clock of ``time.monotonic()``.
            status: The response's status.
            message: What went wrong.
            sender: The hash of the API key that sent it; empty for none.
        """
        now = time.monotonic()
        traffic = self._models.get(model)
        if traffic is None:
            traffic = self._models[model] = _ModelTraffic()
        traffic.requests += 1
        traffic.ended.append((now, now - started))
        if status >= 400:
            traffic.failed += 1
            at = time.time()  # noqa: TID251 - people want the date
            traffic.errors.appendleft({"at": at, "status": status, "message": message[:_MAX_MESSAGE], "sender": sender})

    def report(self, model: str, reader: str = "") -> dict[str, Any]:
        """Returns the figures of a model.

        Args:
            model: The model.
            reader: The hash of the API key that reads them; the texts of errors of other keys' requests are left out.
        """
        traffic = self._models.get(model, _ModelTraffic())
        now = time.monotonic()
        recent = [(at, took) for at, took in traffic.ended if now - at <= _WINDOW_S]
        span = _WINDOW_S
        if recent and len(traffic.ended) == _KEPT and len(recent) == _KEPT:  # there were more than are kept
            span = max(now - recent[0][0], 1e-3)
        return {
            "requests": traffic.requests,
            "failed": traffic.failed,
            "requests_per_s": round(len(recent) / span, 3),
            "latency_ms": _quantiles(sorted(took * 1000 for _, took in recent)),
            "errors": [_shown_to(reader, error) for error in traffic.errors],
        }


def _shown_to(reader: str, error: dict[str, Any]) -> dict[str, Any]:
    shown = {"at": error["at"], "status": error["status"], "message": error["message"]}
    return shown if error["sender"] == reader else shown | {"message": ""}


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {f"p{round(q * 100)}": round(values[min(len(values) - 1, int(q * len(values)))], 3) for q in _QUANTILES}
