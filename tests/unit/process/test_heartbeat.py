"""Worker processes that no longer respond are killed, but not those that are only late."""

from __future__ import annotations

import threading

import pytest

from pytriton.process import heartbeat
from pytriton.process.heartbeat import Heartbeat

PAUSE_S = 0.01
TIMEOUT_S = 20


class Process:
    """Responds to as many questions as it may."""

    def __init__(self, responses):
        self.responses = responses
        self.asked = threading.Semaphore(0)
        self.killed = threading.Event()

    def ask(self, then):
        self.asked.release()
        if self.responses:
            self.responses -= 1
            then()


@pytest.fixture
def watch(monkeypatch):
    """Watches a process until the end of the test."""
    monkeypatch.setattr(heartbeat, "_SHORTEST_PAUSE_S", PAUSE_S)
    heartbeats = []

    def watch(process, limit_s=PAUSE_S):
        heartbeats.append(Heartbeat("model 'm' (instance 0)", limit_s, process.ask, process.killed.set))
        heartbeats[-1].start()
        return heartbeats[-1]

    yield watch
    for each in heartbeats:
        each.end()


def test_a_process_that_no_longer_responds_is_killed(watch, caplog):
    process = Process(responses=2)
    watch(process)

    assert process.killed.wait(TIMEOUT_S)
    assert all(process.asked.acquire(blocking=False) for _ in range(3))
    assert not process.asked.acquire(blocking=False)
    assert "The process of model 'm' (instance 0) has not responded for 0.06 s" in caplog.text


def test_a_process_that_responds_is_asked_again(watch):
    process = Process(responses=1000)
    watch(process)

    assert all(process.asked.acquire(timeout=TIMEOUT_S) for _ in range(10))
    assert not process.killed.is_set()


def test_a_late_response_counts(watch):
    process = Process(responses=0)
    unanswered = []

    def ask(then):
        unanswered.append(then)
        process.asked.release()

    process.ask = ask
    watch(process, limit_s=1)

    for _ in range(3):
        assert process.asked.acquire(timeout=TIMEOUT_S)
        unanswered.pop()()
    assert not process.killed.is_set()


def test_after_the_end_nothing_is_killed(watch):
    process = Process(responses=0)
    watched = watch(process, limit_s=1)
    assert process.asked.acquire(timeout=TIMEOUT_S)
    watched.end()

    for thread in threading.enumerate():
        if thread.name == "pytriton-heartbeat":
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()
    assert not process.killed.is_set()
