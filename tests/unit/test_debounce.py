"""Debouncing."""

from __future__ import annotations

import threading
import time

from pytriton.utils.debounce import Debouncer


def test_several_requests_make_one_call_after_the_last():
    calls, called = [], threading.Event()

    def note():
        calls.append(time.monotonic())
        called.set()

    debouncer = Debouncer(0.1, note, "test")
    last = 0.0
    for _ in range(20):
        last = time.monotonic()
        debouncer.request()

    assert called.wait(10)
    assert calls[0] >= last + 0.1
    assert len(calls) == 1


def test_a_request_after_a_call_makes_another_call():
    called = threading.Semaphore(0)
    debouncer = Debouncer(0.01, called.release, "test")

    for _ in range(2):
        debouncer.request()
        assert called.acquire(timeout=10)
    assert not called.acquire(timeout=0.1)
