"""More than one machine: replicas of a server as Ray actors, to which clients send requests directly.

Examples:
    >>> pool = pytriton.ray.deploy(build, name="double", replicas=3)  # doctest: +SKIP
    >>> with pool.client("Double") as client:  # doctest: +SKIP
    ...     client.infer_sample(np.float32([1, 2]))
"""

from __future__ import annotations

try:
    import ray.serve  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(f"pytriton.ray needs more packages: pip install 'pytriton[ray]' ({error}).") from error

from pytriton.ray.autoscale import Autoscale
from pytriton.ray.deployment import application, deploy
from pytriton.ray.directory import ReplicaEntry
from pytriton.ray.pool import Pool, connect, pools
from pytriton.ray.status import PoolStatus

__all__ = ["Autoscale", "Pool", "PoolStatus", "ReplicaEntry", "application", "connect", "deploy", "pools"]
