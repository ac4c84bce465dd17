"""The event loops of models, which wait awake for a short while."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import numpy as np
import pytest
from executors import x
from wiring import TIMEOUT_S, wait_until

from pytriton.proxy.worker import spinning_loop
from pytriton.proxy.worker.spinning_loop import SpinningEventLoop, SpinningSelector, new_event_loop


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def selector(pair, two_processors):
    """A selector that waits for one end of the pair."""
    with SpinningSelector() as made:
        made.register(pair[0], 1)
        yield made


@pytest.fixture
def spun(monkeypatch):
    """The times until which a selector was awake."""
    ends = []

    def spin(fd, end_ns):
        ends.append(end_ns)
        return False

    monkeypatch.setattr(spinning_loop, "spin_at_descriptor", spin)
    return ends


def select_many(selector, pair, count=100):
    """Has events come at once for a while."""
    pair[1].send(b"event")
    for _ in range(count):
        assert [key.fileobj for key, _ in selector.select()] == [pair[0]]
    pair[0].recv(100)


class TestSelector:
    def test_events_are_returned(self, selector, pair):
        select_many(selector, pair)

        assert selector.select(0) == []
        assert selector.select(0.01) == []
        threading.Timer(0.02, pair[1].send, [b"event"]).start()
        assert [key.fileobj for key, _ in selector.select(TIMEOUT_S)] == [pair[0]]

    def test_it_is_awake_for_a_while_where_events_have_come_soon(self, selector, pair, spun):
        def is_awake_for_a_while():
            select_many(selector, pair)
            begin = time.monotonic_ns()
            assert selector.select(0.01) == []
            return spun and spun[-1] - begin < 5_000_000

        wait_until(is_awake_for_a_while)  # on a busy machine, some of the many events may have taken long

    def test_it_sleeps_where_events_have_taken_long(self, selector, spun):
        assert selector.select(0.01) == []

        assert not spun

    def test_it_sleeps_while_requests_queue(self, selector, pair, spun):
        select_many(selector, pair)
        selector.batch_size = 17

        assert selector.select(0.01) == []

        assert not spun

    def test_it_sleeps_where_that_is_switched_off(self, pair, spun, monkeypatch):
        monkeypatch.setenv("PYTRITON_SPIN", "0")
        with SpinningSelector() as selector:
            selector.register(pair[0], 1)
            select_many(selector, pair)

            assert selector.select(0.01) == []

        assert not spun

    def test_a_wait_takes_no_longer_for_being_awake_first(self, selector, pair):
        for _ in range(5):
            select_many(selector, pair)
            begin = time.monotonic()
            assert selector.select(0.05) == []
            assert 0.05 <= time.monotonic() - begin < 1


class TestLoop:
    def test_it_runs_tasks_timers_and_calls_of_other_threads(self, two_processors):
        loop = new_event_loop()
        assert type(loop) is SpinningEventLoop
        order = []

        async def main():
            for number in range(50):
                event = asyncio.Event()
                threading.Thread(target=loop.call_soon_threadsafe, args=(event.set,)).start()
                await asyncio.wait_for(event.wait(), TIMEOUT_S)
                await asyncio.sleep(0.002)
                order.append(number)

        loop.run_until_complete(main())
        loop.close()

        assert order == list(range(50))

    def test_a_policy_of_the_programs_own_is_respected(self, monkeypatch):
        class Own(asyncio.SelectorEventLoop):
            pass

        monkeypatch.setattr(asyncio, "new_event_loop", Own)
        loop = new_event_loop()
        loop.close()

        assert type(loop) is Own

    def test_it_is_an_ordinary_one_without_the_library(self, monkeypatch):
        monkeypatch.setattr(spinning_loop, "can_spin", lambda: False)
        loop = new_event_loop()
        loop.close()

        assert type(loop) is asyncio.SelectorEventLoop

    def test_it_observes_the_sizes_of_batches(self, serve, monkeypatch):
        sizes = []
        monkeypatch.setattr(SpinningEventLoop, "observe_batch_size", lambda _, size: sizes.append(size))

        async def infer(requests):
            return [{"y": np.array([[1]], np.float32)} for _ in requests]

        _, instance = serve(infer, decoupled=False)
        for count in (1, 9):
            instance.notify(*[x(1)] * count)
            for _ in range(count):
                instance.next_response()

        assert sizes == [1, 9]
