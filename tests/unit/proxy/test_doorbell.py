from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wiring import TIMEOUT_S, BackendsDoorbell, channels, serve_instance, wait_until

from pytriton.proxy.transport.adaptive_spin import AdaptiveSpin
from pytriton.proxy.transport.arena import Arena, PeerArena
from pytriton.proxy.transport.doorbell import POLL_FLAG_SIZE, Doorbell, PollFlag
from pytriton.proxy.wire.notification import Notification, NotificationKind
from pytriton.proxy.worker.worker import Worker


@pytest.fixture
def backend():
    arena = Arena(1 << 20)
    yield BackendsDoorbell(arena)
    arena.close()


@pytest.fixture
def ends(backend):
    """A channel of the backend's, and one that sleeps at the doorbell."""
    backends, workers = channels()
    workers.use_doorbell(PeerArena(os.dup(backend.arena.fd)).memory, backend.offset)
    yield backends, workers
    backends.close()
    workers.close()


def receiving(receive):
    """Has a thread receive; returns it when it sleeps, with the notification or error that it gets."""
    got = []

    def receive_or_end():
        try:
            got.append(receive())
        except EOFError as error:
            got.append(error)

    thread = threading.Thread(target=receive_or_end)
    thread.start()
    time.sleep(0.05)  # it sleeps by now; if not, the test passes all the same
    return thread, got


def test_the_backend_sees_whether_its_notification_was_taken(backend, ends):
    _, workers = ends

    for sequence in (1, 2):
        backend.notify_of(sequence, 64, 64)
        assert not backend.is_read

        assert workers.receive() == Notification(NotificationKind.BATCH, sequence, 64, 64)
        assert backend.is_read


def test_a_backend_that_waits_for_an_acknowledgement_is_woken(backend):
    worker = Doorbell(PeerArena(os.dup(backend.arena.fd)).memory, backend.offset, 0.2)
    waiting = threading.Thread(target=backend.wait_for_acknowledgement)
    waiting.start()
    time.sleep(0.05)  # it sleeps by now; if not, the test passes all the same

    worker.acknowledge_aloud()
    waiting.join(TIMEOUT_S / 2)

    assert not waiting.is_alive()
    assert backend.acknowledged == 1


def test_a_notification_wakes_the_sleeping_worker_which_takes_it(backend, ends):
    _, workers = ends
    thread, got = receiving(workers.receive)

    begin = time.monotonic()
    backend.notify_of(1, 64, 128)
    thread.join(TIMEOUT_S)

    assert got == [Notification(NotificationKind.BATCH, 1, 64, 128)]
    assert time.monotonic() - begin < 0.2  # before it would have woken up by itself


@pytest.mark.parametrize("at_doorbell", [True, False], ids=["at a doorbell", "at a socket"])
def test_a_worker_sleeps_for_the_next_notification_while_requests_queue(backend, ends, monkeypatch, at_doorbell):
    backends, workers = ends
    if not at_doorbell:
        backends, workers = channels()
    workers._spin._limit = 1
    awake = []
    spin = AdaptiveSpin._spin

    def watched(*args):
        awake.append(args)
        return spin(*args)

    monkeypatch.setattr(AdaptiveSpin, "_spin", watched)
    for sequence, (batch_size, may_be_awake) in enumerate([(1, True), (16, True), (17, False), (16, False)], start=1):
        awake.clear()
        workers._spin._average_ns = workers._spin._backoff = 0
        thread, got = receiving(lambda: workers.receive(batch_size))  # noqa: B023
        if at_doorbell:
            backend.notify_of(sequence, 64, 64)
        else:
            backends.send(Notification(NotificationKind.BATCH, sequence, 64, 64))
        thread.join(TIMEOUT_S)

        assert got == [Notification(NotificationKind.BATCH, sequence, 64, 64)]
        assert bool(awake) is may_be_awake
    if not at_doorbell:
        backends.close()
        workers.close()


def test_counts_may_overflow(backend, ends):
    _, workers = ends
    workers._doorbell._acknowledged = 0xFFFFFFFF
    backend.words[0] = backend.words[16] = 0xFFFFFFFF

    backend.notify_of(1, 64, 64)

    assert workers.receive().sequence == 1
    workers.send(Notification(NotificationKind.RESULT, 1, 64, 64))
    assert backend.notification_count == 0


@given(st.lists(st.tuples(*[st.integers(0, 2**63 - 1)] * 3), max_size=4))
def test_notifications_arrive_as_they_were_sent(places):
    arena = Arena(1 << 16)
    backend = BackendsDoorbell(arena)
    backends, workers = channels()
    workers.use_doorbell(PeerArena(os.dup(arena.fd)).memory, backend.offset)
    last = 0
    for sequence, offset, size in places:
        if sequence == last:
            continue
        last = sequence
        backend.notify_of(sequence, offset, size)
        assert workers.receive() == Notification(NotificationKind.BATCH, sequence, offset, size)

        workers.send(Notification(NotificationKind.RESULT, sequence, offset, size))
        assert backend.result == Notification(NotificationKind.RESULT, sequence, offset, size)
    assert backend.notification_count == backend.words[0]
    backends.close()
    workers.close()
    arena.close()


def test_receiving_returns_none_after_its_time_limit(ends):
    _, workers = ends

    assert workers.receive() is None


@pytest.mark.parametrize("notifies", [True, False], ids=["that notifies", "that is killed"])
def test_receiving_raises_eof_when_the_other_side_closes(backend, ends, notifies):
    backends, workers = ends
    thread, got = receiving(lambda: workers.receive() or workers.receive())  # again after silence, on a busy machine

    backends.close()
    if notifies:
        backend.notify()
    thread.join(TIMEOUT_S)

    assert isinstance(got[0], EOFError)


def test_closing_wakes_the_sleeping_thread_of_this_side(ends):
    _, workers = ends
    thread, got = receiving(workers.receive)

    workers.close()
    thread.join(TIMEOUT_S)

    assert isinstance(got[0], EOFError)


@pytest.mark.parametrize("notifies", [True, False], ids=["that notifies", "that is killed"])
def test_a_disconnection_is_detected_after_a_batch(backend, ends, notifies):
    backends, workers = ends
    backend.notify_of(1, 64, 64)
    backends.close()
    if notifies:
        backend.notify()

    assert workers.receive().sequence == 1
    with pytest.raises(EOFError):
        workers.receive()


def test_closing_notifies_the_other_side_without_a_result(backend, ends):
    _, workers = ends
    workers.send(Notification(NotificationKind.RESULT, 1, 64, 64))

    workers.close()

    assert backend.notification_count == 2
    assert backend.result.sequence == 1


@pytest.fixture
def lock_step(wire):
    """A worker that sleeps at a doorbell: the connection, the backend's end of the channel, and the doorbell."""
    connection = wire()
    backend = BackendsDoorbell(connection.arena)
    worker = Worker(lambda requests: [[request["x"]] * 2 for request in requests], connection.signature)
    ours, theirs = channels()
    serve_instance(worker, theirs, connection, doorbell=backend.offset)
    yield connection, ours, backend
    ours.close()
    worker.close(TIMEOUT_S)


def test_a_worker_in_lock_step_announces_its_sleep(lock_step):
    connection, ours, backend = lock_step
    welcome, fd, _ = ours.receive_fds()
    os.close(fd)

    backend.notify_of(1, *connection.lay_down([{"x": np.zeros((1, 3), np.float32)}]))

    assert welcome.offset == backend.offset
    wait_until(lambda: backend.notification_count == 1)
    assert backend.result.sequence == 1


def test_receiving_ends_when_it_is_woken_and_no_batch_is_lost(backend, ends):
    _, workers = ends
    thread, got = receiving(workers.receive)
    workers.wake()
    thread.join(TIMEOUT_S)

    assert got == [None]
    assert workers.is_woken
    backend.notify_of(1, 64, 64)
    assert workers.receive().sequence == 1
    assert workers.receive() is None, "it stays woken until that is reset"

    workers.is_woken = False
    workers.wake()
    backend.notify_of(2, 64, 64)
    assert workers.receive().sequence == 2


def test_a_notification_is_shown_to_a_thread_that_polls():
    memory = bytearray(2 * POLL_FLAG_SIZE)
    words = memoryview(memory)[POLL_FLAG_SIZE:].cast("I")
    flag = PollFlag(memory, POLL_FLAG_SIZE)

    assert not flag.show()
    assert list(words[:2]) == [0, 0]
    words[0] = 1
    assert flag.show()
    assert list(words[:2]) == [1, 1]
