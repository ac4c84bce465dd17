from __future__ import annotations

import os
import pathlib
import threading

import pytest

from pytriton.proxy.transport.time_slice import request_short_time_slice

SHORT_NS = 100_000


def turn():
    """How long the calling thread's turns are, in nanoseconds."""
    lines = pathlib.Path("/proc/thread-self/sched").read_text().splitlines()
    return next(int(line.split()[-1]) for line in lines if line.startswith("se.slice"))


def in_a_thread(*steps):
    """What the steps return, each taken by one thread: what that asks for stays with it."""
    found = []
    thread = threading.Thread(target=lambda: found.extend(step() for step in steps))
    thread.start()
    thread.join()
    assert len(found) == len(steps)
    return found


@pytest.fixture
def usual(grants_turns):
    """How long the turns are that the kernel gives to threads which ask for nothing."""
    (found,) = in_a_thread(turn)
    return found


def test_a_thread_may_ask_for_short_turns(usual):
    assert in_a_thread(turn, request_short_time_slice, turn) == [usual, None, SHORT_NS]


def test_the_threads_that_it_starts_have_the_usual_turns(usual):
    assert in_a_thread(request_short_time_slice, lambda: in_a_thread(turn), turn) == [None, [usual], SHORT_NS]


def test_other_threads_keep_their_turns(usual):
    in_a_thread(request_short_time_slice)

    assert turn() == usual


def test_a_thread_with_a_nice_value_of_its_own_keeps_it_and_its_turns(usual):
    def nice():
        return os.getpriority(os.PRIO_PROCESS, 0)

    before = nice()
    assert in_a_thread(lambda: os.nice(5), request_short_time_slice, turn, nice) == [
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


def test_policy_and_nice_value_stay_as_they_are():
    def policy():
        return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK, os.getpriority(os.PRIO_PROCESS, 0)

    assert in_a_thread(request_short_time_slice, policy) == [None, policy()]
