"""The status of a pool, as Ray Serve and the replicas report it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ray.serve.schema import ApplicationStatusOverview

from pytriton.ray.pools.directory import ReplicaEntry, ReplicaFailure

_COLUMNS = ("REPLICA", "NODE", "READY", "HTTP", "GRPC", "METRICS", "MODELS", "PENDING", "QUEUE MS", "BUSY", "RESTARTS")


@dataclasses.dataclass(frozen=True)
class PoolStatus:
    """The status of a pool.

    Attributes:
        name: The pool's name.
        state: The state of its application in Ray Serve: ``RUNNING``, ``DEPLOYING``, ``DEPLOY_FAILED``, ``UNHEALTHY``,
            ``DELETING`` or ``NOT_STARTED``.
        message: Ray Serve's message about that state; empty if all is well.
        replica_states: Number of replicas in each state of Ray Serve, like ``{"RUNNING": 3}``.
        replicas: The running replicas, as they report themselves.
        failures: The last replicas that could not be started, the oldest first.
    """

    name: str
    state: str
    message: str
    replica_states: dict[str, int]
    replicas: Sequence[ReplicaEntry]
    failures: Sequence[ReplicaFailure]

    def __str__(self) -> str:
        """Returns a table of the replicas, below the pool's state."""
        counts = ", ".join(f"{count} {state}" for state, count in sorted(self.replica_states.items())) or "no replica"
        lines = [f"Pool {self.name}: {self.state} ({counts})"]
        if self.message:
            lines.append(f"  {_first_line(self.message)}")
        lines += [f"  Replica {each.id} on node {each.node[:8]} failed: {each.error}" for each in self.failures]
        if self.replicas:
            rows = [_COLUMNS, *map(_row, self.replicas)]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            lines += ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join(lines)


def messages_of(app: ApplicationStatusOverview) -> list[str]:
    """Returns Ray Serve's messages about an application and its deployments, without duplicates."""
    messages = [app.message, *(deployment.message for deployment in app.deployments.values())]
    return list(dict.fromkeys(filter(None, messages)))


def _first_line(message: str) -> str:
    """Returns the first line of a message, without a traceback."""
    return message.strip().partition("\n")[0].removesuffix(" Error:")


def _row(replica: ReplicaEntry) -> tuple[str, ...]:
    return (
        replica.id,
        replica.node[:8],
        "yes" if replica.is_ready else "no",
        replica.http or "-",
        replica.grpc or "-",
        replica.metrics or "-",
        ",".join(replica.models) or "-",
        f"{replica.load.get('pending', 0):.0f}",
        f"{replica.load.get('queue_ms', 0):.1f}",
        f"{replica.load.get('busy', 0):.2f}",
        str(replica.server_restarts),
    )
