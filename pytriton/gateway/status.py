"""``/status``: the figures of the live page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytriton.gateway.access import ApiKey
from pytriton.gateway.describe import description
from pytriton.gateway.errors import RequestError
from pytriton.gateway.models import Models
from pytriton.gateway.traffic import Traffic

_NS_PER_MS = 1e6


async def status(models: Models, traffic: Traffic, key: ApiKey | None) -> dict[str, Any]:
    """Returns the figures of all models that an API key may use.

    Raises:
        RequestError: The server is not running.
    """
    upstream = models.upstream
    versions: dict[str, list[int]] = {}
    for name, version in await models.names():
        if key is None or key.may_use(name):
            versions.setdefault(name, []).append(version)
    statistics = (await models.statistics(None, None)).get("model_stats", [])
    found = []
    for name, numbers in sorted(versions.items()):
        try:
            described = description(await models.find(name), name)
        except RequestError:  # it has been unloaded meanwhile
            continue
        instances, restarts = upstream.instances(name)
        found.append(
            described
            | {"versions": sorted(numbers), "description": upstream.description(name)}
            | {"instances": instances, "restarts": restarts}
            | _of_triton([each for each in statistics if each["name"] == name])
            | traffic.report(name, "" if key is None else key.hash)
        )
    return {"server": {"version": await upstream.version(), "restarts": upstream.restarts()}, "models": found}


def _of_triton(statistics: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the sizes of batches, and the mean time in the queue; over gRPC, numbers are text."""
    sizes: dict[int, int] = {}
    queued = waited_ns = 0
    for version in statistics:
        for batch in version.get("batch_stats", ()):
            size = int(batch.get("batch_size", 0))
            sizes[size] = sizes.get(size, 0) + int(batch.get("compute_infer", {}).get("count", 0))
        queue = version.get("inference_stats", {}).get("queue", {})
        queued += int(queue.get("count", 0))
        waited_ns += int(queue.get("ns", 0))
    queue_ms = round(waited_ns / queued / _NS_PER_MS, 3) if queued else None
    return {"batch_sizes": {str(size): count for size, count in sorted(sizes.items())}, "queue_ms": queue_ms}
