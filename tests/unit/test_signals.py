"""Signals that wake a serving program."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest
from forked import fork

from pytriton.utils.signals import wait_for_event, wake_on_signals

DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}


@pytest.fixture(autouse=True)
def default_handlers():
    """Handlers that other tests of this process have left, such as those of running servers, stay out of these."""
    left = {number: signal.signal(number, handler) for number, handler in DEFAULTS.items()}
    yield
    for number, handler in left.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_sets_the_event(number):
    woken = threading.Event()
    with wake_on_signals(woken):
        signal.raise_signal(number)
        assert woken.wait(10)


def test_a_signal_in_the_middle_of_a_wait_does_not_block_it():
    woken = threading.Event()
    with wake_on_signals(woken):
        with woken._cond:  # as the main thread holds it for an instant when it begins to wait
            signal.raise_signal(signal.SIGTERM)
        assert woken.wait(10)


def test_ctrl_c_interrupts_what_follows_the_wait_and_sigterm_does_not():
    woken = threading.Event()
    with wake_on_signals(woken) as allow_interrupts:
        allow_interrupts()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert woken.wait(10)


def test_the_previous_handlers_are_restored():
    before = signal.getsignal(signal.SIGTERM)
    with wake_on_signals(threading.Event()):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_does_not_interrupt_the_wait_is_noticed_soon():
    woken = threading.Event()
    # A signal that another thread receives does not wake the main thread, which handles it; nor does one that arrives
    # an instant before it falls asleep.
    other = threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
    with wake_on_signals(woken):
        started = time.monotonic()
        threading.Timer(0.1, other.start).start()
        assert wait_for_event(woken, 10)
    assert time.monotonic() - started < 5


def test_a_wait_for_an_event_ends_at_its_timeout():
    started = time.monotonic()
    assert not wait_for_event(threading.Event(), 0.1)
    assert 0.1 <= time.monotonic() - started < 5


def test_signals_end_a_forked_process_as_usual():
    ready, says = os.pipe()
    with wake_on_signals(threading.Event()):

        def run():
            os.write(says, b"!")
            signal.pause()

        child = fork(run)
        os.read(ready, 1)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    os.close(ready)
    os.close(says)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_wait_within_another_leaves_the_handlers_of_the_outer_one(number):
    woken = threading.Event()
    with wake_on_signals(woken):
        with wake_on_signals(threading.Event()) as allow_interrupts:
            allow_interrupts()
        signal.raise_signal(number)
        assert woken.wait(10)


def test_the_handler_of_asyncio_is_replaced():
    async def main():
        woken = threading.Event()
        with wake_on_signals(woken):
            signal.raise_signal(signal.SIGINT)
            assert woken.wait(10)

    asyncio.run(main())


def test_a_handler_of_the_users_own_stays():
    calls = []

    def own(number, _):
        calls.append(number)

    before = signal.signal(signal.SIGTERM, own)
    try:
        woken = threading.Event()
        with wake_on_signals(woken):
            signal.raise_signal(signal.SIGTERM)
        assert not woken.is_set()
        assert calls == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
