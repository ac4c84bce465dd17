"""Sums of the statistics of several servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# gRPC's JSON omits zeros.
_NONE = {"count": 0, "ns": 0}
_NO_BATCHES = {"compute_input": _NONE, "compute_infer": _NONE, "compute_output": _NONE}
_NO_REQUESTS = {"last_inference": 0, "inference_count": 0, "execution_count": 0} | {
    "inference_stats": {"success": _NONE, "fail": _NONE, "queue": _NONE, **_NO_BATCHES},
    "batch_stats": [],
}


def sums(statistics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Adds up the statistics of each version of a model."""
    totals: dict[tuple[str, str], dict[str, Any]] = {}
    for each in statistics:
        key = each["name"], each.get("version", "")
        totals[key] = _sum(totals.get(key, _NO_REQUESTS), each)
    return list(totals.values())


def _sum(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Adds up numbers, which gRPC's JSON has as text, in objects and in lists of objects with a size."""
    total = dict(one)
    for name, value in other.items():
        if isinstance(value, Mapping):
            total[name] = _sum(one.get(name, {}), value)
        elif isinstance(value, list):
            sizes = {each["batch_size"]: each for each in one.get(name, [])}
            for each in value:
                size = int(each["batch_size"])
                sizes[size] = _sum(sizes.get(size, _NO_BATCHES), each) | {"batch_size": size}
            total[name] = list(sizes.values())
        elif name in ("name", "version"):
            total[name] = value
        elif name == "last_inference":
            total[name] = max(int(value), one.get(name, 0))
        else:
            total[name] = int(value) + one.get(name, 0)
    return total
