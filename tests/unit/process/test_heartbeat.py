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


class Pauses:
    """Stands in for the event that ends a heartbeat: responds in every fifth pause, and ends after thirty."""

    def __init__(self, respond):
        self.respond = respond
        self.count = 0

    def wait(self, _):
        self.count += 1
        if self.count % 5 == 0:
            self.respond()
        return self.count > 30


def test_a_late_response_counts():
    unanswered, killed = [], threading.Event()
    late = Heartbeat("model 'm' (instance 0)", PAUSE_S, unanswered.append, killed.set)
    late._ended = Pauses(lambda: unanswered.pop()())

    late._run()

    assert not killed.is_set()


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
