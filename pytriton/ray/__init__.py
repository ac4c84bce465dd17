"""More than one machine: replicas of a server as Ray actors, and model instances on other nodes.

Clients send their requests to the replicas directly; Ray places, supervises and scales them.

Examples:
    >>> pool = pytriton.ray.deploy(build, name="double", replicas=3)  # doctest: +SKIP
    >>> with pool.client("Double") as client:  # doctest: +SKIP
    ...     client.infer_sample(np.float32([1, 2]))
"""

from __future__ import annotations

try:
    import ray.serve  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(f"pytriton.ray needs Ray: pip install 'pytriton[ray]' ({error}).") from error

from pytriton.ray.instances.remote_instance import RemoteInstance
from pytriton.ray.pools.autoscale import Autoscale
from pytriton.ray.pools.deployment import application, deploy
from pytriton.ray.pools.directory import ReplicaEntry, ReplicaFailure
from pytriton.ray.pools.discovery import DiscoveryServer
from pytriton.ray.pools.pool import Pool, connect, pools
from pytriton.ray.pools.status import PoolStatus

__all__ = [
    "Autoscale",
    "DiscoveryServer",
    "Pool",
    "PoolStatus",
    "RemoteInstance",
    "ReplicaEntry",
    "ReplicaFailure",
    "application",
    "connect",
    "deploy",
    "pools",
]
