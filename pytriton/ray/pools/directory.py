"""The directory of a Ray cluster: an actor that knows where the replicas of each pool are."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import secrets
import time
from collections.abc import Mapping
from typing import Any

import ray
import ray.actor

NAMESPACE = "pytriton"
PUBLISH_INTERVAL_S = 1.0

# The number is the version of the actor's interface: a cluster may outlive a version of this package.
_ACTOR_NAME = "pytriton-directory-1"
_LEASE_S = 5.0  # a replica that does not renew its entry for this long is considered gone
_MAX_FAILURES = 10
_HEAD = "node:__internal_head__"  # Ray's name of the node that a cluster cannot lose


@dataclasses.dataclass(frozen=True)
class ReplicaEntry:
    """A replica of a pool, as it reports itself.

    Attributes:
        id: The replica's name, as in Ray Serve.
        node: The id of its node in Ray.
        http: Triton's URL for HTTP; empty if it does not serve it.
        grpc: Triton's URL for gRPC; empty if it does not serve it.
        metrics: ``host:port`` of its metrics; empty if it does not serve them.
        models: The names of its models.
        is_ready: Whether Triton reports that it is ready.
        load: Its load in the last second or so: ``pending``, the number of requests in the server; ``queue_ms``, how
            long requests waited in Triton's queue, in milliseconds; ``busy``, the share of time that the instances of
            the busiest model computed, from 0 to 1.
        server_restarts: How often its Triton was restarted.
        pid: The process of the actor.
    """

    id: str
    node: str
    http: str
    grpc: str
    metrics: str
    models: tuple[str, ...]
    is_ready: bool
    load: Mapping[str, float]
    server_restarts: int
    pid: int


@dataclasses.dataclass(frozen=True)
class ReplicaFailure:
    """A replica that could not be started.

    Attributes:
        id: The replica's name, as in Ray Serve.
        node: The id of its node in Ray.
        error: The exception, in a line.
        traceback: The exception with its traceback.
        number: Counts the failures of the pool, from 1.
    """

    id: str
    node: str
    error: str
    traceback: str
    number: int = 0


Version = tuple[str, int]
"""The version of a pool's addresses: an id of the directory's start, and a number."""


class _Pool:
    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)
        self.entries: dict[str, ReplicaEntry] = {}
        self.renewed: dict[str, float] = {}
        self.failures: collections.deque[ReplicaFailure] = collections.deque(maxlen=_MAX_FAILURES)
        self.failed = 0
        self.number = 0
        self.changed = asyncio.Event()

    def ready(self) -> list[ReplicaEntry]:
        return [entry for entry in self.entries.values() if entry.is_ready]

    def change(self) -> None:
        self.number += 1
        self.changed.set()
        self.changed = asyncio.Event()


class Directory:
    """The actor: replicas publish where they are, clients watch. An entry that is not renewed expires."""

    def __init__(self) -> None:
        self._start = secrets.token_hex(8)
        self._pools: dict[str, _Pool] = {}

    async def token(self, pool: str) -> str:
        """Returns the access token of a pool's servers, which is created on first use."""
        return self._pool(pool).token

    async def publish(self, pool: str, entry: ReplicaEntry, token: str) -> None:
        """Adds or renews a replica's entry.

        Args:
            pool: The pool's name.
            entry: The entry.
            token: The pool's access token, which a restarted directory has lost.
        """
        known = self._pool(pool)
        known.token = token
        before = known.entries.get(entry.id)
        known.entries[entry.id] = entry
        known.renewed[entry.id] = time.monotonic()
        if before is None or _place(before) != _place(entry):
            known.change()

    async def withdraw(self, pool: str, replica: str) -> None:
        """Removes a replica's entry."""
        self._remove(self._pool(pool), replica)

    async def fail(self, pool: str, failure: ReplicaFailure) -> None:
        """Notes that a replica could not be started."""
        known = self._pool(pool)
        known.failed += 1
        known.failures.append(dataclasses.replace(failure, number=known.failed))

    async def failures(self, pool: str) -> list[ReplicaFailure]:
        """Returns the last failures of a pool, the oldest first."""
        return list(self._pool(pool).failures)

    async def entries(self, pool: str) -> list[ReplicaEntry]:
        """Returns the entries of a pool."""
        self._expire()
        return list(self._pool(pool).entries.values())

    async def pools(self) -> list[str]:
        """Returns the names of the pools that have replicas."""
        self._expire()
        return sorted(name for name, pool in self._pools.items() if pool.entries)

    async def watch(self, pool: str, version: Version | None, timeout_s: float) -> tuple[Version, list[ReplicaEntry]]:
        """Returns the ready replicas of a pool, as soon as they differ from a given version.

        Args:
            pool: The pool's name.
            version: The version that the caller knows; None returns at once.
            timeout_s: How long to wait.
        """
        known = self._pool(pool)
        deadline = time.monotonic() + timeout_s
        while True:
            self._expire()
            left_s = deadline - time.monotonic()
            if version != (self._start, known.number) or left_s <= 0:
                return (self._start, known.number), known.ready()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(known.changed.wait(), min(left_s, PUBLISH_INTERVAL_S))

    def _pool(self, name: str) -> _Pool:
        return self._pools.setdefault(name, _Pool())

    def _expire(self) -> None:
        oldest = time.monotonic() - _LEASE_S
        for pool in self._pools.values():
            for replica in [each for each, renewed in pool.renewed.items() if renewed < oldest]:
                self._remove(pool, replica)

    def _remove(self, pool: _Pool, replica: str) -> None:
        pool.renewed.pop(replica, None)
        if pool.entries.pop(replica, None) is not None:
            pool.change()


def _place(entry: ReplicaEntry) -> tuple[str, str, bool]:
    return entry.http, entry.grpc, entry.is_ready


def directory() -> Any:
    """Returns the handle of the cluster's directory, which is started if it is not running."""
    actor: Any = ray.remote(Directory)
    options: dict[str, Any] = {
        "name": _ACTOR_NAME,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "resources": {_HEAD: 0.001},
        "max_restarts": -1,
        "max_concurrency": 10_000,
    }
    return actor.options(**options).remote()
