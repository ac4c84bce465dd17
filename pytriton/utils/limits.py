"""Resource limits of this process, which the server inherits."""

from __future__ import annotations

import resource

from pytriton.exceptions import PyTritonRuntimeError

_MIN_FILES = 128
_ENOUGH_MEMORY = 8 << 30


def check_limits() -> None:
    """Checks that the server can open as many files as it needs to start.

    Raises:
        PyTritonRuntimeError: The limit is too low.
    """
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < _MIN_FILES:
        raise PyTritonRuntimeError(
            f"This process may open {files} files (the hard limit of `ulimit -n`), and the server needs at least "
            f"{_MIN_FILES}, and one more for each connection; raise the limit."
        )


def limits_hint() -> str:
    """Returns a sentence about a limit that may be why something failed; empty if there is none."""
    size, _ = resource.getrlimit(resource.RLIMIT_AS)
    if size == resource.RLIM_INFINITY or size > _ENOUGH_MEMORY:
        return ""
    return f" The address space of this process is limited to {size >> 20} MiB (`ulimit -v`), which may be the cause."
