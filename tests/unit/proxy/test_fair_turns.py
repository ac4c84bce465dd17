"""Threads that serve streams give way to batches that have just come."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
from executors import x, y
from wiring import TIMEOUT_S

from pytriton.proxy.worker import fair_turns


class Streams:
    """Generators that yield for as long as they are not stopped, and note when they do."""

    def __init__(self):
        self.steps = {}  # when each has yielded
        self.stopped = threading.Event()

    def infer(self, requests):
        times = self.steps.setdefault(int(requests[0]["x"][0, 0]), [])
        while not self.stopped.is_set():
            times.append(time.monotonic())
            yield [y(len(times))]
            time.sleep(0.002)  # lets the test run, and is longer than a turn

    def pauses(self, stream, longest_s):
        """The pauses between the steps of a stream that took longer than that."""
        times = self.steps[stream]
        return [after - before for before, after in itertools.pairwise(times) if after - before > longest_s]


@pytest.fixture
def streams():
    made = Streams()
    yield made
    made.stopped.set()


def begin(instance, number):
    sequence = instance.notify(x(number))
    while instance.next_response()[0].sequence != sequence:
        pass


def read_for(instance, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        instance.next_response()


def test_a_stream_waits_once_for_a_batch_that_does_not_start(serve, streams, monkeypatch):
    monkeypatch.setattr(fair_turns, "_LONGEST_S", 0.5)
    _, instance = serve(streams.infer, has_doorbell=True)
    begin(instance, 1)

    instance.doorbell.count()  # of a notification that never comes
    read_for(instance, 1.5)

    (pause,) = streams.pauses(1, 0.4)
    assert pause < 0.9


def test_a_stream_continues_as_soon_as_the_batch_has_started(serve, streams, monkeypatch):
    monkeypatch.setattr(fair_turns, "_LONGEST_S", 2 * TIMEOUT_S)
    _, instance = serve(streams.infer, has_doorbell=True)

    for number in range(1, 9):
        begin(instance, number)
    read_for(instance, 0.2)

    for number in range(1, 9):
        assert streams.pauses(number, 1.0) == []
        assert len(streams.steps[number]) > 5


def test_without_a_doorbell_no_stream_waits(serve, streams, monkeypatch):
    monkeypatch.setattr(fair_turns, "_LONGEST_S", 2 * TIMEOUT_S)
    _, instance = serve(streams.infer)
    begin(instance, 1)
    begin(instance, 2)
    read_for(instance, 0.1)

    assert all(streams.pauses(number, 1.0) == [] for number in (1, 2))


def test_a_batch_is_acknowledged_by_its_thread(serve):
    seen = []

    def infer(requests):
        seen.append(instance.doorbell.acknowledged)
        yield [y(1)]

    _, instance = serve(infer, has_doorbell=True)
    for _ in range(3):
        assert instance.stream(instance.notify(x(1))) == [[[1]]]

    assert seen == [1, 2, 3]
