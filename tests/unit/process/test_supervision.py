from __future__ import annotations

import itertools
import threading

import pytest

from pytriton.process.supervision import RestartDelays, RestartLoop

TIMEOUT_S = 20
_numbers = itertools.count()


class Lives:
    """What runs in a loop: each run lasts until its end is given."""

    def __init__(self):
        self.ends = []
        self.began = threading.Semaphore(0)
        self._end = threading.Semaphore(0)
        self._next = ("", False)
        self.failing = []
        self.loop = RestartLoop("thing", f"of-a-test-{next(_numbers)}", self._live, self._note_end, self.failing.append)

    def end(self, how, has_loaded):
        self._next = (how, has_loaded)
        self._end.release()

    def _live(self):
        self.began.release()
        assert self._end.acquire(timeout=TIMEOUT_S)
        return self._next

    def _note_end(self, *how):
        self.ends.append(how)


@pytest.fixture
def lives():
    lives = Lives()
    lives.loop.start()
    assert lives.began.acquire(timeout=TIMEOUT_S)
    yield lives
    lives.loop.closing.set()
    lives.end("closed", True)
    lives.loop.join(TIMEOUT_S)
    assert not lives.loop.is_alive


def test_a_process_that_exits_before_it_has_loaded_is_not_restarted(lives):
    lives.end("failed", False)
    assert lives.loop.settled.wait(TIMEOUT_S)
    lives.loop.join(TIMEOUT_S)

    assert lives.ends == [("failed", False, True)]
    assert lives.loop.restarts == 0


def test_a_process_that_exits_after_it_has_loaded_is_restarted(lives, caplog):
    lives.loop.note_loaded()
    lives.end("died", True)
    assert lives.began.acquire(timeout=TIMEOUT_S)
    lives.end("failed", False)
    assert lives.began.acquire(timeout=TIMEOUT_S)

    assert lives.ends == [("died", True, False), ("failed", False, False)]
    assert lives.loop.restarts == 2
    assert caplog.messages == ["thing died; restarting", "thing failed; restarting in 0.1 s"]


def test_a_closed_process_is_not_restarted(lives):
    lives.loop.note_loaded()
    lives.loop.closing.set()
    lives.end("closed", True)
    lives.loop.join(TIMEOUT_S)

    assert lives.ends == [("closed", True, True)]
    assert not lives.began.acquire(blocking=False)
    assert lives.failing == []


def test_it_fails_from_the_first_restart_that_does_not_load_to_one_that_does(lives):
    lives.loop.note_loaded()
    for how in [("died", True), ("failed", False), ("failed", False)]:
        lives.end(*how)
        assert lives.began.acquire(timeout=TIMEOUT_S)
    assert lives.failing == [True]

    lives.loop.note_loaded()
    assert lives.failing == [True, False]


def test_it_no_longer_fails_once_it_is_closed(lives):
    lives.loop.note_loaded()
    for how in [("died", True), ("failed", False)]:
        lives.end(*how)
        assert lives.began.acquire(timeout=TIMEOUT_S)
    lives.loop.closing.set()
    lives.end("closed", False)
    lives.loop.join(TIMEOUT_S)

    assert lives.failing == [True, False]


def test_closing_ends_the_delay_before_a_restart(lives):
    lives.loop.note_loaded()
    for _ in range(3):  # the fourth run would come after 0.4 s
        lives.end("died", True)
        assert lives.began.acquire(timeout=TIMEOUT_S)
    lives.end("died", True)
    lives.loop.closing.set()
    lives.loop.join(TIMEOUT_S)

    assert not lives.began.acquire(blocking=False)


def test_delays_double_up_to_a_limit_and_are_reset_after_a_long_run():
    delays = RestartDelays()
    assert [delays.after(1) for _ in range(10)] == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]
    assert [delays.after(61), delays.after(1)] == [0, 0.1]
