"""Measures the resources that a server's processes hold, to find leaks."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pathlib
import re

import psutil
from serving import server_of, shared_memory, wait_until

MIB = 1 << 20
# Allocators keep some pages for themselves, however often they were used; a leak grows with the requests.
TOLERANCE_MIB = 24
TOLERANCE_FILES = {"user": 3, "server": 0}  # gRPC's threads and those of earlier tests may open some in the test's own
TRIM_S = 15.0


class Footprint:
    """What the two processes hold: resident memory (their shared memory included), and open files."""

    def __init__(self, triton):
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what the test's own clients have freed is not a leak
        self._processes = {"user": psutil.Process(os.getpid()), "server": server_of(triton)}
        self.rss = {name: process.memory_info().rss / MIB for name, process in self._processes.items()}
        self.files = {name: process.num_fds() for name, process in self._processes.items()}
        self.shared_memory = shared_memory()

    def growth(self, later):
        """How many MiB each process has grown."""
        return {name: later.rss[name] - self.rss[name] for name in self.rss}

    def more_files(self, later):
        """How many more files each process has open."""
        return {name: later.files[name] - self.files[name] for name in self.files}

    def is_as_before(self, later):
        """Whether neither process holds more than what is not a leak."""
        return max(self.growth(later).values()) < TOLERANCE_MIB and all(
            more <= TOLERANCE_FILES[name] for name, more in self.more_files(later).items()
        )


def settled(triton, before):
    """The footprint once idle memory is given back, or when that is overdue."""

    def is_back():
        after = Footprint(triton)
        return after if before.is_as_before(after) else None

    try:
        return wait_until(is_back, TRIM_S)
    except AssertionError:
        return Footprint(triton)


def assert_same(before, after):
    assert before.is_as_before(after), (before.rss, after.rss, before.files, after.files)
    assert after.shared_memory <= before.shared_memory


def sleeps_of(process):
    """How often each thread of a process has slept, by its ID."""
    counts = {}
    for thread in pathlib.Path(f"/proc/{process.pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            (count,) = re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", (thread / "status").read_text(), re.M)
            counts[thread.name] = int(count)
    return counts
