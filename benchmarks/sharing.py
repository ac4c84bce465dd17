"""How the kernel shares out the processors between servers and load: thread by thread, or a part for each session.

In a container it does the former. Elsewhere the latter is common (`man 7 sched`, "The autogroup feature"), and the
figures then depend on who has a session of its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_BY_SESSION = Path("/proc/sys/kernel/sched_autogroup_enabled")
_GROUPS = Path("/sys/fs/cgroup")


def is_by_session() -> bool:
    """Say whether each session has a part of its own."""
    return _read(_BY_SESSION).strip() == "1" and not _has_shares(_group())


@contextlib.contextmanager
def by_thread() -> Iterator[None]:
    """Have all threads of this process and its children treated alike in the ``with`` block, as in a container.

    That takes a control group of their own, which root can make. Where it cannot be had, all stays as it is.
    """
    group = _group()
    own = group / f"pytriton-benchmark-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        if is_by_session():
            with contextlib.suppress(OSError):
                own.mkdir()
                stack.callback(_remove, own)
                _enter(own)
                stack.callback(_enter, group)
        yield


def _enter(group: Path) -> None:
    (group / "cgroup.procs").write_text("0")


def _remove(group: Path) -> None:
    with contextlib.suppress(OSError):  # some process may have stayed
        group.rmdir()


def _group() -> Path:
    """Find this process's control group, of those that may share out processors."""
    unified = _GROUPS
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return _GROUPS / controllers / path.lstrip("/")
        if not controllers:
            unified = _GROUPS / path.lstrip("/")
    return unified


def _has_shares(group: Path) -> bool:
    """Say whether a control group has shares of its own; a container's is called like the machine's, which has none."""
    if (group / "tasks").exists():  # of version 1
        return not (group / "release_agent").exists()
    return (group / "cgroup.type").exists() and "cpu" in _read(group / "cgroup.controllers").split()


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
