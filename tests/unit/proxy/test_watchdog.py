"""The watchdog's reports: which calls hang, and when they no longer do."""

from __future__ import annotations

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
