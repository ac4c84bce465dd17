"""The memory that the server may use."""

from __future__ import annotations

import contextlib
import os
import pathlib

_SHARE = 0.8
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def default_memory_limit() -> int:
    """Returns the bytes of memory at which the server is restarted: a share of the machine's or container's."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # there is none, or it is "max"
            total = min(total, int(pathlib.Path(path).read_text(encoding="utf-8")))
    return int(total * _SHARE)
