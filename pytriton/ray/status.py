"""The status of a pool, as Ray Serve and the replicas report it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pytriton.ray.directory import ReplicaEntry

_COLUMNS = ("REPLICA", "NODE", "READY", "HTTP", "GRPC", "METRICS", "MODELS", "PENDING", "QUEUE MS", "BUSY", "RESTARTS")


@dataclasses.dataclass(frozen=True)
class PoolStatus:
    """The status of a pool.

    Attributes:
        name: The pool's name.
        state: That of its application in Ray Serve: ``RUNNING``, ``DEPLOYING``, ``DEPLOY_FAILED``, ``UNHEALTHY``,
            ``DELETING`` or ``NOT_STARTED``.
        message: Why it is in that state, with the error of a replica that could not be started; empty if all is well.
        replica_states: How many replicas Ray Serve has in each state, like ``{"RUNNING": 3}``.
        replicas: The replicas that run, as they report themselves.
    """

    name: str
    state: str
    message: str
    replica_states: dict[str, int]
    replicas: Sequence[ReplicaEntry]

    def __str__(self) -> str:
        """Returns a table of the replicas, below the pool's state."""
        counts = ", ".join(f"{count} {state}" for state, count in sorted(self.replica_states.items())) or "no replica"
        lines = [f"Pool {self.name}: {self.state} ({counts})"]
        lines += [f"  {line}" for line in self.message.splitlines()]
        if self.replicas:
            rows = [_COLUMNS, *map(_row, self.replicas)]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            lines += ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join(lines)


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
