"""Signals that wake a serving program."""

from __future__ import annotations

import signal
import threading

import pytest

from pytriton.utils.signals import wake_on_signals


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


def test_the_previous_handlers_are_restored():
    before = signal.getsignal(signal.SIGTERM)
    with wake_on_signals(threading.Event()):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
