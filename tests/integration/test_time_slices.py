"""The threads that a batch passes through request short time slices."""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading

import pytest
from serving import bind_floats, send_floats, server_of

from pytriton.decorators import batch

pytestmark = pytest.mark.usefixtures("grants_time_slices")

SHORT_NS = 100_000


def time_slices_of(pid):
    """Time slices of the threads of a process, in nanoseconds; empty if the kernel does not show them."""
    slices = {}
    for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            for line in (thread / "sched").read_text().splitlines():
                if line.startswith("se.slice"):
                    slices[int(thread.name)] = int(line.split()[-1])
    return slices


def test_threads_of_model_and_callable_have_short_time_slices(triton, name):
    threads = []

    @batch
    def infer(x):
        threads.append(threading.get_native_id())
        return {"y": x}

    server = server_of(triton).pid
    before = time_slices_of(server)
    bind_floats(triton, name, infer)
    send_floats(triton, name, [1])

    assert time_slices_of(os.getpid())[threads[0]] == SHORT_NS
    after = time_slices_of(server)
    assert [after[thread] for thread in after if thread not in before].count(SHORT_NS) == 1


def test_threads_that_a_callable_starts_have_the_usual_time_slices(triton, name):
    started = []

    @batch
    def infer(x):
        thread = threading.Thread(target=lambda: started.append(time_slices_of(os.getpid())[threading.get_native_id()]))
        thread.start()
        thread.join()
        return {"y": x}

    bind_floats(triton, name, infer)
    send_floats(triton, name, [1])

    assert started == [time_slices_of(os.getpid())[os.getpid()]] != [SHORT_NS]
