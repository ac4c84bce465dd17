"""The CPU limit of this process's control group, such as that of a container.

Counterpart of ``backend/transport/cpu_limit.h``.
"""

from __future__ import annotations

import contextlib
import os
import pathlib


def cpu_count() -> int:
    """Returns the number of processors that this process can keep busy; a CPU limit is rounded down, but not to 0."""
    count = len(os.sched_getaffinity(0))
    limit = cpu_limit()
    return count if limit is None else max(1, min(count, int(limit)))


def cpu_limit(root: str = "/") -> float | None:
    """Returns how many processors' time the control groups of this process may take; None if no limit is visible.

    Once their threads have used up a period's share, usually of 100 ms, the kernel throttles them until the next one.

    Args:
        root: The folder in which ``/proc`` and ``/sys`` are.
    """
    mounts = pathlib.Path(root, "sys/fs/cgroup")
    limits: list[float] = []
    with contextlib.suppress(OSError):
        groups = pathlib.Path(root, "proc/self/cgroup").read_bytes()
        for line in os.fsdecode(groups).split("\n"):
            if line.count(":") < 2:
                continue
            _, controllers, group = line.split(":", 2)
            if not controllers:  # version 2
                limits += _limits_of(mounts, group)
            elif "cpu" in controllers.split(","):
                limits += [*_limits_of(mounts / controllers, group), *_limits_of(mounts / "cpu", group)]
    return min(limits, default=None)


def _limits_of(mount: pathlib.Path, path: str) -> list[float]:
    """Returns the limits of a control group and of those that it is in.

    In a container, the group itself is often not visible, or only as the root.
    """
    group = pathlib.Path(path.lstrip("/"))
    if ".." in group.parts:
        group = pathlib.Path()
    limits = [_limit_of(mount / each) for each in (group, *group.parents)]
    return [limit for limit in limits if limit is not None]


def _limit_of(group: pathlib.Path) -> float | None:
    """Returns the limit of one control group, of version 1 or 2."""
    for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        with contextlib.suppress(OSError, ValueError, OverflowError):  # there is none, or it is "max"
            quota, period = map(int, b" ".join((group / name).read_bytes() for name in names).split())
            return quota / period if quota > 0 and period > 0 else None
    return None
