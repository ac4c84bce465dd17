"""The watchdog's reports: which calls hang, and when they no longer do."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys

import pytest
from wiring import wait_until

from pytriton.proxy.worker.watchdog import Watchdog

TIMEOUT_S = 0.1


@pytest.fixture
def reports():
    """What the watchdog has reported: True for each call that hangs, False for each that no longer does."""
    return []


@pytest.fixture
def watchdog(reports):
    watchdog = Watchdog("m", TIMEOUT_S, reports.append)
    yield watchdog
    watchdog.close()


def test_each_call_that_hangs_is_reported_and_each_end(watchdog, reports):
    watchdog.begin("first")
    wait_until(lambda: reports == [True])
    watchdog.begin("second")
    wait_until(lambda: reports == [True, True])

    watchdog.end("first")
    assert reports == [True, True, False]
    watchdog.end("second")
    assert reports == [True, True, False, False]


def test_calls_that_are_late_together_are_reported_one_by_one(watchdog, reports):
    for key in range(3):
        watchdog.begin(key)

    wait_until(lambda: reports == [True, True, True])


def test_a_call_that_ends_in_time_is_not_reported(watchdog, reports):
    watchdog.begin("quick")
    watchdog.end("quick")
    watchdog.begin("slow")

    wait_until(lambda: reports)
    assert reports == [True]


def test_a_stream_no_longer_hangs_after_a_step_and_may_hang_again(watchdog, reports):
    watchdog.begin("stream")
    wait_until(lambda: reports == [True])

    watchdog.progress("stream")
    assert reports == [True, False]
    wait_until(lambda: reports == [True, False, True])
    watchdog.end("stream")
    assert reports == [True, False, True, False]


def test_hanging_calls_no_longer_count_after_closing(watchdog, reports):
    watchdog.begin("call")
    wait_until(lambda: reports == [True])

    watchdog.close()
    assert reports == [True, False]
    watchdog.end("call")
    assert reports == [True, False]


class Timer:
    """Stands in for faulthandler's timer, which there is one of."""

    def __init__(self):
        self.files = []
        self.is_set = False
        self.fails = False

    def set(self, timeout, *, file, exit):
        if self.fails:
            raise RuntimeError("unable to start watchdog thread")
        self.files.append(file)
        self.is_set = True

    def cancel(self):
        self.is_set = False


@pytest.fixture
def timer(monkeypatch):
    timer = Timer()
    monkeypatch.setattr(faulthandler, "dump_traceback_later", timer.set)
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", timer.cancel)
    return timer


def test_the_timer_is_set_before_the_first_call(timer, watchdog):
    watchdog.begin("call")

    assert timer.is_set


def test_the_timer_writes_to_the_processs_own_stderr_whatever_the_program_has_put_there(timer, watchdog, monkeypatch):
    class StreamToLogger:
        def write(self, text):
            pass

    monkeypatch.setattr(sys, "stderr", StreamToLogger())
    watchdog.begin("call")

    wait_until(lambda: len(timer.files) > 1)
    assert {os.path.sameopenfile(file, 2) for file in timer.files} == {True}
    watchdog.close()
    wait_until(lambda: not timer.is_set and not is_open(timer.files[0]))


def is_open(fd):
    with contextlib.suppress(OSError):
        return bool(os.fstat(fd))


def test_an_old_timer_does_not_remain_if_it_cannot_be_set_again(timer, watchdog):
    watchdog.begin("call")
    wait_until(lambda: timer.is_set)
    timer.fails = True

    wait_until(lambda: not timer.is_set)
