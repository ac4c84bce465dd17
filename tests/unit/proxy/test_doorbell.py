from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest
from wiring import TIMEOUT_S, BackendsDoorbell, bell_of, channels, wait_until

from pytriton.proxy.arena import Arena, PeerArena
from pytriton.proxy.doorbell import DOORBELL_SIZE, Doorbell
from pytriton.proxy.protocol import Bell, BellKind
from pytriton.proxy.worker import Worker

BATCH = Bell(BellKind.BATCH, 1, 64, 64)


@pytest.fixture
def backend():
    arena = Arena(1 << 20)
    yield BackendsDoorbell(arena)
    arena.close()


@pytest.fixture
def ends(backend):
    """A channel of the backend's, and one that sleeps at the doorbell."""
    backends, workers = channels()
    workers.sleep_at(PeerArena(os.dup(backend.arena.fd)).memory, backend.offset)
    yield backends, workers
    backends.close()
    workers.close()


def receiving(channel):
    """Has a thread receive, and returns it when it sleeps, and what it got or was told."""
    got = []

    def receive():
        try:
            got.append(channel.receive())
        except EOFError as error:
            got.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    time.sleep(0.05)  # it sleeps by now; if not, the test passes all the same
    return thread, got


def test_the_backend_sees_whether_its_bell_was_taken(backend, ends):
    backends, workers = ends

    for _ in range(2):
        backends.send(BATCH)
        backend.ring()
        assert not backend.is_heard

        assert workers.receive() == BATCH
        assert backend.is_heard


def test_a_ring_wakes_who_sleeps_there_and_the_bell_is_taken(backend, ends):
    backends, workers = ends
    thread, got = receiving(workers)

    begin = time.monotonic()
    backends.send(BATCH)
    backend.ring()
    thread.join(TIMEOUT_S)

    assert got == [BATCH]
    assert time.monotonic() - begin < 0.2  # before it would have woken up by itself


def test_bells_that_came_before_are_taken_one_by_one(backend, ends):
    backends, workers = ends
    bells = [Bell(BellKind.BATCH, sequence, 64, 64) for sequence in (1, 2, 3)]
    for bell in bells:
        backends.send(bell)
        backend.ring()

    assert [workers.receive() for _ in bells] == bells


def test_counts_may_run_over(backend, ends):
    backends, workers = ends
    workers._doorbell._heard = workers._doorbell._rung = 0xFFFFFFFF
    backend.words[0] = 0xFFFFFFFF

    backends.send(BATCH)
    backend.words[0] = 0
    backend.wake()

    assert workers.receive() == BATCH
    workers.send(BATCH)
    assert backend.words[16] == 0


def test_whoever_sends_rings(backend, ends):
    backends, workers = ends

    workers.send(BATCH)
    workers.send(BATCH)

    assert backend.words[16] == 2
    assert bell_of(backends) == BATCH


def test_silence_is_reported(ends):
    _, workers = ends

    assert workers.receive() is None


@pytest.mark.parametrize("rings", [True, False], ids=["that rings", "that is killed"])
def test_the_end_of_the_other_side_is_noticed(backend, ends, rings):
    backends, workers = ends
    thread, got = receiving(workers)

    backends.close()
    if rings:
        backend.ring()
    thread.join(TIMEOUT_S)

    assert isinstance(got[0], EOFError)


def test_closing_wakes_who_sleeps_on_this_side(ends):
    _, workers = ends
    thread, got = receiving(workers)

    workers.close()
    thread.join(TIMEOUT_S)

    assert isinstance(got[0], EOFError)


@pytest.fixture
def lock_step(wire):
    """A worker that sleeps at a doorbell: the connection, the backend's end of the channel, and the doorbell."""
    connection = wire()
    offset = connection.arena.allocate(DOORBELL_SIZE)
    words = memoryview(connection.arena.memory)[offset : offset + DOORBELL_SIZE].cast("I")
    words[0] = words[16] = 0
    worker = Worker(lambda requests: [[request["x"]] * 2 for request in requests], connection.signature)
    ours, theirs = channels()
    worker.start(theirs, os.dup(connection.arena.fd), doorbell=offset)
    yield connection, ours, offset, words
    ours.close()
    worker.close(TIMEOUT_S)


def test_a_worker_in_lock_step_says_that_it_sleeps_there(lock_step):
    connection, ours, offset, words = lock_step
    welcome, fd, _ = ours.receive_fds()
    os.close(fd)

    ours.send(Bell(BellKind.BATCH, 1, *connection.lay_down([{"x": np.zeros((1, 3), np.float32)}])))
    words[0] += 1
    Doorbell(connection.peer.memory, offset, 0.2).wake()

    assert welcome.offset == offset
    result = bell_of(ours)
    assert (result.kind, result.sequence) == (BellKind.RESULT, 1)
    wait_until(lambda: words[16] == 1)  # it rings when it has sent
