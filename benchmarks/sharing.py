"""Controls how the kernel shares processors between servers and load: by thread, or equally by session.

In a container it does the former. Elsewhere the latter is common (`man 7 sched`, "The autogroup feature"), and the
figures then depend on which processes have sessions of their own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_BY_SESSION = Path("/proc/sys/kernel/sched_autogroup_enabled")
_GROUPS = Path("/sys/fs/cgroup")


def is_by_session() -> bool:
    """Return whether each session has a share of its own."""
    return _read(_BY_SESSION).strip() == "1" and not _has_shares(_group())


@contextlib.contextmanager
def by_thread() -> Iterator[None]:
    """Let all threads of this process and its children share equally in the ``with`` block, as in a container.

    That takes a control group of their own, which root can make. Otherwise, nothing changes.
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
    with contextlib.suppress(OSError):  # a process may have remained
        group.rmdir()


def _group() -> Path:
    """Find this process's control group, among those that control shares of processors."""
    unified = _GROUPS
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return _GROUPS / controllers / path.lstrip("/")
        if not controllers:
            unified = _GROUPS / path.lstrip("/")
    return unified


def _has_shares(group: Path) -> bool:
    """Return whether a control group has its own shares; a container's is named as the machine's, which has none."""
    if (group / "tasks").exists():  # of version 1
        return not (group / "release_agent").exists()
    return (group / "cgroup.type").exists() and "cpu" in _read(group / "cgroup.controllers").split()


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
