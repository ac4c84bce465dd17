"""Resource limits of this process, which the server inherits."""

from __future__ import annotations

import errno
import logging
import os
import resource
from pathlib import Path

from pytriton.exceptions import PyTritonRuntimeError

LOGGER = logging.getLogger(__name__)

_MEMORY_IN_USE = Path("/proc/self/statm")  # in pages
_MIN_FILES = 128
_SPARE_FILES = 128  # for the rest of the program
_ENOUGH_MEMORY = 8 << 30


def check_limits(shared_memory: int) -> None:
    """Checks that the server can open as many files as it needs to start, and create its shared memory.

    Args:
        shared_memory: The size of a piece of shared memory, in bytes.

    Raises:
        PyTritonRuntimeError: A limit is too low.
    """
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size != resource.RLIM_INFINITY and size < shared_memory:  # the kernel would kill the server by SIGXFSZ
        raise PyTritonRuntimeError(
            f"This process may write files of at most {size >> 10} KiB (`ulimit -f`), which holds for shared memory, "
            f"too, and the server creates pieces of {shared_memory >> 10} KiB, most of them empty; raise the limit."
        )
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < _MIN_FILES:
        raise PyTritonRuntimeError(
            f"This process may open {files} files (the hard limit of `ulimit -n`), and the server needs at least "
            f"{_MIN_FILES}, and one more for each connection; raise the limit."
        )


def check_address_space(server_memory: int, own_memory: int) -> None:
    """Checks that this process can map the shared memory of an instance.

    Args:
        server_memory: The size of the server's shared memory, in bytes, most of which is never used.
        own_memory: That of its own.

    Raises:
        PyTritonRuntimeError: Its address space is limited to less, for example by a factory, after the server's start.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    used = int(_MEMORY_IN_USE.read_text("ascii").split()[0]) * os.sysconf("SC_PAGESIZE")
    needed = used + server_memory + own_memory
    if limit < needed:
        raise PyTritonRuntimeError(
            f"The address space of this process is limited to {limit >> 20} MiB (RLIMIT_AS, `ulimit -v`), and it needs "
            f"{needed >> 20} MiB, most of them for shared memory that is mapped and never used; limit its memory by a "
            "container or a control group instead, or set that limit before the server starts."
        )


def allow_files(count: int, users: str) -> None:
    """Lets this process open this many more files, as far as its hard limit allows.

    Many systems allow 1,024 unless a process asks for more.

    Args:
        count: The number of files.
        users: What needs them, for the warning that the hard limit may be too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    try:
        lowest_free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        lowest_free = soft
    else:
        os.close(lowest_free)
    needed = lowest_free + count + _SPARE_FILES
    if needed <= soft:
        return
    limit = 2 * needed  # doubled, so that it is rarely raised
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    if hard != resource.RLIM_INFINITY and needed > hard:
        LOGGER.warning("This process may open %d files (`ulimit -Hn`), and %s may need %d.", hard, users, needed)


def has_spare_files(descriptor: int) -> bool:
    """Returns whether enough files are left for the rest of the program, after this one was opened.

    Args:
        descriptor: The new one. Those below it are in use, since the kernel assigns the lowest that is free.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit == resource.RLIM_INFINITY or descriptor < limit - min(_SPARE_FILES, limit // 4)


def limits_hint(log: str = "") -> str:
    """Returns a sentence about a limit that may be why something failed; empty if there is none.

    Args:
        log: What was logged.
    """
    if os.strerror(errno.EAGAIN) in log:
        return (
            " It could not start a thread: raise the limit on the processes and threads of this user (`ulimit -u`) "
            "or of its container."
        )
    size, _ = resource.getrlimit(resource.RLIMIT_AS)
    if size == resource.RLIM_INFINITY or size > _ENOUGH_MEMORY:
        return ""
    return f" The address space of this process is limited to {size >> 20} MiB (`ulimit -v`), which may be the cause."
