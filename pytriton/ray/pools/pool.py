"""A pool of Tritons in a Ray cluster."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import ray
from ray import serve

from pytriton.client import AsyncioModelClient, ModelClient
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.ray.pools.addresses import Addresses
from pytriton.ray.pools.directory import ReplicaEntry, ReplicaFailure, directory
from pytriton.ray.pools.status import PoolStatus, messages_of

DEPLOYMENT = "triton"
"""The name of a pool's deployment in its application of Ray Serve."""

CLIENT_RESTART_TIMEOUT_S = 30.0  # longer than it takes to start a replica on another node

_TIMEOUT_S = 30.0  # the directory may have to be started, in its own process


def connect(name: str) -> Pool:
    """Returns a pool that was deployed by this or another process of the cluster.

    Args:
        name: The pool's name.

    Raises:
        PyTritonBadParameterError: The cluster has no pool of this name.

    Examples:
        >>> pool = connect("double")  # doctest: +SKIP
    """
    if not ray.is_initialized():
        ray.init(address="auto")
    pool = Pool(name)
    status = pool.status()
    if status.state == "NOT_STARTED" and not status.replicas:
        known = ", ".join(map(repr, pools())) or "none"
        raise PyTritonBadParameterError(f"The cluster has no pool {name!r}; it has {known}.")
    return pool


def pools() -> list[str]:
    """Returns the names of the cluster's pools, including those that are being deployed."""
    names: list[str] = ray.get(directory().pools.remote(), timeout=_TIMEOUT_S)
    deployed = [name for name, app in serve.status().applications.items() if DEPLOYMENT in app.deployments]
    return sorted({*names, *deployed})


class Pool:
    """A pool of Tritons in a Ray cluster, returned by `deploy` and `connect`.

    It can be sent to other processes of the cluster.

    Args:
        name: The pool's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        """The pool's name."""
        return self._name

    def client(
        self, model_name: str, model_version: str | None = None, *, protocol: str = "http", **settings: Any
    ) -> ModelClient:
        """Returns a client of a model, which sends its requests to the replicas directly and in turn.

        The client notices when replicas come and go. A request that a replica could not serve is sent to another one,
        for up to 30 seconds. So is a request that was in flight when the replica died, which may therefore be executed
        twice. With ``restart_timeout_s=0``, none is sent again.

        Args:
            model_name: The model's name.
            model_version: Its version; the latest by default.
            protocol: ``http`` or ``grpc``.
            settings: Further arguments of `ModelClient`.

        Raises:
            PyTritonBadParameterError: The protocol is unknown.

        Examples:
            >>> with pool.client("Double") as client:  # doctest: +SKIP
            ...     client.infer_sample(np.float32([1, 2]))
        """
        settings = {"restart_timeout_s": CLIENT_RESTART_TIMEOUT_S, **settings}
        return ModelClient(self.urls(protocol), model_name, model_version, **settings)

    def aclient(
        self, model_name: str, model_version: str | None = None, *, protocol: str = "grpc", **settings: Any
    ) -> AsyncioModelClient:
        """Returns a client of a model for asyncio; see `client`."""
        settings = {"restart_timeout_s": CLIENT_RESTART_TIMEOUT_S, **settings}
        return AsyncioModelClient(self.urls(protocol), model_name, model_version, **settings)

    def urls(self, protocol: str = "http") -> Callable[[], list[str]]:
        """Returns a function that returns the URLs of the ready replicas, for the argument ``url`` of any client.

        Args:
            protocol: ``http`` or ``grpc``.

        Raises:
            PyTritonBadParameterError: The protocol is unknown.

        Examples:
            >>> client = DecoupledModelClient(pool.urls("grpc"), "Chat")  # doctest: +SKIP
            >>> app = Gateway(pool.urls("grpc"), access_token=pool.access_token)  # doctest: +SKIP
        """
        if protocol not in ("http", "grpc"):
            raise PyTritonBadParameterError(f"protocol is {protocol!r}; give 'http' or 'grpc'.")
        return functools.partial(self._addresses.urls, protocol)

    @property
    def access_token(self) -> str:
        """The access token of the pool's Tritons."""
        token: str = ray.get(directory().token.remote(self._name), timeout=_TIMEOUT_S)
        return token

    def replicas(self) -> list[ReplicaEntry]:
        """Returns the running replicas, as they report themselves."""
        entries: list[ReplicaEntry] = ray.get(directory().entries.remote(self._name), timeout=_TIMEOUT_S)
        return sorted(entries, key=lambda entry: entry.id)

    def failures(self) -> list[ReplicaFailure]:
        """Returns the last replicas that could not be started, the oldest first, including earlier deployments."""
        failures: list[ReplicaFailure] = ray.get(directory().failures.remote(self._name), timeout=_TIMEOUT_S)
        return failures

    def status(self) -> PoolStatus:
        """Returns the pool's status; printed, it is a table of the replicas."""
        app = serve.status().applications.get(self._name)
        if app is None:
            return PoolStatus(self._name, "NOT_STARTED", "", {}, self.replicas(), [])
        states: dict[str, int] = {}
        for deployment in app.deployments.values():
            for state, count in deployment.replica_states.items():
                states[str(state)] = states.get(str(state), 0) + count
        message = "\n".join(messages_of(app))
        return PoolStatus(self._name, app.status.value, message, states, self.replicas(), self.failures())

    def targets(self) -> list[dict[str, Any]]:
        """Returns where Prometheus finds the metrics of all replicas, in the form of its service discovery.

        Examples:
            >>> pool.targets()  # doctest: +SKIP
            [{'targets': ['10.0.0.4:38331'], 'labels': {'pool': 'double', 'replica': 'k2x9d1aa', 'node': '5f0c…'}}]
        """
        return [
            {"targets": [each.metrics], "labels": {"pool": self._name, "replica": each.id, "node": each.node}}
            for each in self.replicas()
            if each.metrics
        ]

    def shutdown(self) -> None:
        """Removes the pool; its replicas serve the requests in flight before they stop."""
        serve.delete(self._name)

    @functools.cached_property
    def _addresses(self) -> Addresses:
        return Addresses(self._name)

    def __reduce__(self) -> tuple[type[Pool], tuple[str]]:
        return Pool, (self._name,)

    def __repr__(self) -> str:
        return f"Pool({self._name!r})"
