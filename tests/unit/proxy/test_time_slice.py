from __future__ import annotations

import os
import pathlib
import threading

import pytest

from pytriton.proxy.transport.time_slice import request_short_time_slice

SHORT_NS = 100_000


def time_slice():
    """The calling thread's time slice, in nanoseconds."""
    lines = pathlib.Path("/proc/thread-self/sched").read_text().splitlines()
    return next(int(line.split()[-1]) for line in lines if line.startswith("se.slice"))


def in_a_thread(*steps):
    """Calls functions in one new thread, and returns their results."""
    found = []
    thread = threading.Thread(target=lambda: found.extend(step() for step in steps))
    thread.start()
    thread.join()
    assert len(found) == len(steps)
    return found


@pytest.fixture
def usual(grants_time_slices):
    """The time slice of threads that have not requested one."""
    (found,) = in_a_thread(time_slice)
    return found


def test_a_thread_may_request_short_time_slices(usual):
    assert in_a_thread(time_slice, request_short_time_slice, time_slice) == [usual, None, SHORT_NS]


def test_the_threads_that_it_starts_have_the_usual_time_slices(usual):
    assert in_a_thread(request_short_time_slice, lambda: in_a_thread(time_slice), time_slice) == [
        None,
        [usual],
        SHORT_NS,
    ]


def test_other_threads_keep_their_time_slices(usual):
    in_a_thread(request_short_time_slice)

    assert time_slice() == usual


def test_a_thread_with_a_nice_value_of_its_own_keeps_it_and_its_time_slices(usual):
    def nice():
        return os.getpriority(os.PRIO_PROCESS, 0)

    before = nice()
    assert in_a_thread(lambda: os.nice(5), request_short_time_slice, time_slice, nice) == [
        before + 5,
        None,
        usual,
        before + 5,
    ]


def test_a_thread_with_a_policy_of_its_own_keeps_it():
    def become_batch():
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

    steps = become_batch, request_short_time_slice, lambda: os.sched_getscheduler(0)
    assert in_a_thread(*steps) == [None, None, os.SCHED_BATCH]


def test_policy_and_nice_value_are_not_changed():
    def policy():
        return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK, os.getpriority(os.PRIO_PROCESS, 0)

    assert in_a_thread(request_short_time_slice, policy) == [None, policy()]
