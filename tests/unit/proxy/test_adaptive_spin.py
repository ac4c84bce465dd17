from __future__ import annotations

import os
import threading

import pytest

import pytriton.proxy.transport.adaptive_spin as spinning
from pytriton.proxy.transport.adaptive_spin import AdaptiveSpin

THING = object()


class Post:
    """Something to wait for, which says how it was waited for."""

    def __init__(self):
        self.polled = self.slept = 0
        self.comes_after = 0  # so many times it is polled unsuccessfully

    def send_request(self):
        self.polled += 1
        return THING if self.polled > self.comes_after else None

    def sleep(self):
        self.slept += 1
        return THING

    def wait(self, spin, batch_size=1, linger=None):
        self.polled = self.slept = 0
        assert spin.wait(self.send_request, self.sleep, batch_size, linger) is THING
        return "asleep" if self.slept else "awake"


class Clock:
    """Time that passes by a microsecond at each call."""

    def __init__(self):
        self.now_ns = 0

    def monotonic_ns(self):
        self.now_ns += 1000
        return self.now_ns


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(spinning, "time", made)
    return made


@pytest.fixture
def spin(two_processors, clock):
    """One that may spin."""
    return AdaptiveSpin()


def busy(spin):
    """Has it come quickly for a while."""
    for _ in range(100):
        Post().wait(spin)


def test_a_thread_sleeps_for_an_event_that_has_taken_long(spin):
    post = Post()

    assert post.wait(spin) == "asleep"
    assert post.polled == 0


def test_a_thread_spins_for_an_event_that_comes_soon(spin):
    busy(spin)
    post = Post()
    post.comes_after = 3

    assert post.wait(spin) == "awake"
    assert post.polled == 4


def test_a_thread_sleeps_after_unsuccessful_spinning(spin, clock):
    busy(spin)
    post = Post()
    post.comes_after = float("inf")

    begin = clock.now_ns
    assert post.wait(spin) == "asleep"
    assert post.polled > 1
    assert clock.now_ns - begin < 1_000_000


def test_a_thread_sleeps_again_once_an_event_takes_longer(spin, clock):
    def sleep():
        clock.now_ns += 5_000_000
        return THING

    busy(spin)
    for _ in range(5):
        spin.wait(lambda: None, sleep)

    assert Post().wait(spin) == "asleep"


def test_a_wait_may_time_out(spin):
    busy(spin)

    assert spin.wait(lambda: None, lambda: None) is None


def unsuccessful_spins(spin, times):
    """Waits for as many late events; returns the numbers of those during which it was awake."""
    numbers = []
    for number in range(times):
        post = Post()
        post.comes_after = float("inf")
        post.wait(spin)
        if post.polled:
            numbers.append(number)
    return numbers


def test_spinning_pauses_longer_after_each_unsuccessful_attempt(spin):
    busy(spin)

    # Awake once, 8 times asleep, awake once, 16 times asleep.
    assert unsuccessful_spins(spin, 40) == [0, 9, 26]


def test_spinning_pauses_less_once_it_has_paid_off(spin):
    busy(spin)
    assert unsuccessful_spins(spin, 9 + 17) == [0, 9]  # the next rest would be of 32

    assert [Post().wait(spin) for _ in range(3)] == ["awake"] * 3
    assert unsuccessful_spins(spin, 10) == [0, 9]


def test_a_thread_sleeps_while_requests_queue_and_once_more_afterwards(spin):
    busy(spin)

    assert Post().wait(spin, batch_size=16) == "awake"
    assert [Post().wait(spin, batch_size) for batch_size in (17, *[1, 16] * 127, 1, 1, 1)] == ["asleep"] * 256 + [
        "awake"
    ] * 2


def contended(end_ns):
    """Other threads have kept the processor for long."""
    return True


def pause_after_contention(spin, comes_after):
    """Has other programs keep the processor during a wait; returns how many waits the thread then sleeps."""
    post = Post()
    post.comes_after = comes_after
    post.wait(spin, linger=contended)
    assert post.polled == 2
    return next(number for number in range(10_000) if Post().wait(spin) == "awake")


@pytest.mark.parametrize("comes_after", [1, float("inf")], ids=["in-time", "too-late"])
def test_a_thread_does_not_spin_for_long_while_other_programs_keep_the_processor(spin, comes_after):
    busy(spin)

    # Each pause ends with a wait that is not disturbed, which halves the next one.
    pauses = [pause_after_contention(spin, comes_after) for _ in range(9)]

    assert pauses == [32, 64, 128, 256, 512, 512, 512, 512, 512]


def test_a_thread_that_is_rarely_disturbed_soon_spins_again(spin):
    busy(spin)
    for _ in range(3):
        pause_after_contention(spin, 1)
    busy(spin)

    assert pause_after_contention(spin, 1) == 32


def test_a_thread_with_the_interpreter_notices_that_other_programs_keep_the_processor(spin, clock, monkeypatch):
    def yield_for_long():
        clock.now_ns += 2_000_000

    busy(spin)
    monkeypatch.setattr(os, "sched_yield", yield_for_long)
    post = Post()
    post.comes_after = 1
    assert post.wait(spin) == "awake"

    assert Post().wait(spin) == "asleep"


def wait_beside(spin, other, linger=None):
    """Has a thread spin, and another one wait meanwhile; returns how the other one waited."""
    for each in (spin, other):
        busy(each)
    ways = []

    def send_request():
        if not ways:
            thread = threading.Thread(target=lambda: ways.append(Post().wait(other, linger=linger)))
            thread.start()
            thread.join()
        return THING

    spin.wait(send_request, lambda: pytest.fail("it slept"), linger=linger)
    return ways.pop()


def test_one_thread_of_a_process_spins_with_the_interpreter_lock_at_a_time(spin):
    assert wait_beside(spin, AdaptiveSpin(for_reply=True)) == "asleep"


@pytest.mark.parametrize(
    ("spins_for_reply", "other_for_reply", "way"),
    [(False, False, "asleep"), (True, False, "asleep"), (False, True, "awake"), (True, True, "awake")],
    ids=["batch-batch", "reply-batch", "batch-reply", "reply-reply"],
)
def test_on_two_processors_a_second_thread_spins_only_for_a_reply(
    two_processors, clock, spins_for_reply, other_for_reply, way
):
    spins, other = (AdaptiveSpin(for_reply=for_reply) for for_reply in (spins_for_reply, other_for_reply))

    assert wait_beside(spins, other, linger=lambda end_ns: False) == way


def test_an_error_ends_the_wait_and_lets_others_spin(spin):
    busy(spin)

    def gone():
        raise EOFError

    with pytest.raises(EOFError):
        spin.wait(gone, gone)
    assert Post().wait(spin) == "awake"


def test_it_can_be_switched_off(monkeypatch, two_processors, clock):
    monkeypatch.setenv("PYTRITON_SPIN", "0")
    spin = AdaptiveSpin()
    busy(spin)

    assert Post().wait(spin) == "asleep"


def test_on_a_single_processor_no_thread_spins(monkeypatch, two_processors, clock):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    spin = AdaptiveSpin(for_reply=True)
    busy(spin)

    assert Post().wait(spin, linger=lambda end_ns: False) == "asleep"


@pytest.fixture
def eight_processors(monkeypatch, two_processors):
    """Returns a function that sets a CPU limit on a machine of eight processors."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    return lambda limit: monkeypatch.setattr(spinning, "_cpu_limit", lambda: limit)


@pytest.mark.parametrize("limit", [None, 8, 100])
def test_without_a_low_cpu_limit_half_of_the_processors_are_for_batches_and_all_for_replies(eight_processors, limit):
    eight_processors(limit)

    assert [spinning._max_spinning(for_reply=for_reply) for for_reply in (False, True)] == [4, 8]


@pytest.mark.parametrize(("limit", "count"), [(7.5, 3), (5, 2), (4, 1), (3, 1), (2.5, 0), (2, 0), (1, 0), (0.5, 0)])
def test_under_a_cpu_limit_spinning_leaves_a_processor_to_others_and_half_of_the_rest_to_the_server(
    eight_processors, limit, count
):
    eight_processors(limit)

    assert [spinning._max_spinning(for_reply=for_reply) for for_reply in (False, True)] == [count, count]


def test_processes_that_share_a_cpu_limit_do_not_spin(monkeypatch, eight_processors):
    monkeypatch.setattr(spinning, "_shares_cpu_limit", False)
    spinning.share_cpu_limit()
    eight_processors(7)
    assert spinning._max_spinning(for_reply=True) == 0

    eight_processors(None)
    assert spinning._max_spinning(for_reply=True) == 8
