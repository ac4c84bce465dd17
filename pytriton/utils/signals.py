"""Signals that end a serving program."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType
from typing import Any

LOGGER = logging.getLogger(__name__)


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FATAL_SIGNALS = (signal.SIGTERM, signal.SIGHUP)  # their default action ends the process without cleaning up
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler, None)
_LONGEST_SLEEP_S = 1.0

_clean_ups: list[Callable[[], None]] = []
_replaced: dict[signal.Signals, Any] = {}
"""The handlers that `wake_on_signals` has replaced for now."""
_interrupts = threading.Event()
"""Whether they interrupt the main thread, too."""


@contextlib.contextmanager
def wake_on_signals(woken: threading.Event) -> Iterator[Callable[[], None]]:
    """Sets the event on SIGINT, SIGTERM and SIGHUP, if this is the main thread.

    A signal that is ignored, as in a background job, stays ignored; a handler of the user's own stays, too, and decides
    what happens. Stop within the block: shells, terminals and process managers may send SIGTERM or SIGHUP twice, and
    the second one must not kill a program that finishes its requests.

    Yields:
        A function that lets Ctrl-C interrupt the rest of the block.
    """
    # A handler runs in the middle of whatever the main thread does, perhaps with the event's lock held; a SimpleQueue
    # alone allows that.
    arrived: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def wake(number: int, _: FrameType | None) -> None:
        arrived.put(number)
        if _interrupts.is_set():
            raise KeyboardInterrupt

    def wait() -> None:
        while (number := arrived.get()) is not None:
            LOGGER.info("Stopping on %s.", signal.Signals(number).name)
            woken.set()

    def allow_interrupts() -> None:
        _restore({signal.SIGINT}.intersection(numbers))

    numbers: list[signal.Signals] = []
    if threading.current_thread() is not threading.main_thread():
        yield allow_interrupts
        return
    numbers += [each for each in _SIGNALS if _is_replaceable(signal.getsignal(each))]
    waker = threading.Thread(target=wait, name="pytriton-signals", daemon=True)
    waker.start()
    _replaced.update({number: signal.signal(number, wake) for number in numbers})
    try:
        yield allow_interrupts
    finally:
        _restore(numbers)
        arrived.put(None)
        waker.join()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Makes the signals of `wake_on_signals` interrupt the block, in the main thread, by a `KeyboardInterrupt`."""
    _interrupts.set()
    try:
        yield
    finally:
        _interrupts.clear()


def _is_replaceable(handler: Any) -> bool:
    """Returns whether a signal has its default action, or that of `asyncio.run`: to cancel the task that waits here."""
    of_asyncio = getattr(getattr(handler, "func", None), "__module__", None) == "asyncio.runners"
    return of_asyncio or handler in (*_DEFAULTS, _clean_up)


def _restore(numbers: Iterable[signal.Signals]) -> None:
    for number in _replaced.keys() & set(numbers):
        handler = _replaced.pop(number)
        is_default = handler is None or (handler is _clean_up and not _clean_ups)  # it was forgotten meanwhile
        signal.signal(number, signal.SIG_DFL if is_default else handler)


def wait_for_event(event: threading.Event, timeout_s: float = math.inf) -> bool:
    """Waits for an event as its `wait` does, in a thread that handles signals meanwhile.

    Python handles a signal that arrives just before the main thread falls asleep only when that wakes up.

    Returns:
        Whether the event is set.
    """
    deadline = time.monotonic() + timeout_s
    while not event.wait(min(_LONGEST_SLEEP_S, max(0.0, deadline - time.monotonic()))):
        if time.monotonic() >= deadline:
            return False
    return True


def comes_from_handler(error: BaseException) -> bool:
    """Returns whether a signal handler raised an exception, in the middle of whatever the main thread did."""
    if threading.current_thread() is not threading.main_thread():
        return False
    codes = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(handler: Any) -> CodeType | None:
    """Returns the code of a signal handler; None if it has none, as Python's own ones."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not callable(handler):
        return None
    code: CodeType | None = getattr(handler, "__code__", None)  # of a function or a method
    return code or getattr(type(handler).__call__, "__code__", None)


def clean_up_when_killed(clean_up: Callable[[], None]) -> None:
    """Calls a function before SIGTERM or SIGHUP ends this process, if they have their default action.

    Only the main thread can arrange that; elsewhere, nothing happens.
    """
    _clean_ups.append(clean_up)
    if threading.current_thread() is threading.main_thread():
        for number in _FATAL_SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _clean_up)


def forget_clean_up(clean_up: Callable[[], None]) -> None:
    """Undoes `clean_up_when_killed`."""
    with contextlib.suppress(ValueError):
        _clean_ups.remove(clean_up)
    if not _clean_ups and threading.current_thread() is threading.main_thread():
        for number in _FATAL_SIGNALS:
            if signal.getsignal(number) is _clean_up:
                signal.signal(number, signal.SIG_DFL)


def _clean_up(number: int, _: FrameType | None) -> None:
    for each in _FATAL_SIGNALS:
        signal.signal(each, signal.SIG_IGN)  # a second signal must not interrupt this
    for clean_up in list(_clean_ups):
        with contextlib.suppress(Exception):
            clean_up()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # PID 1 of a container ignores signals that it sends itself


def _restore_in_child() -> None:
    _restore(list(_replaced))
    _clean_ups.clear()
    for number in _FATAL_SIGNALS:
        if signal.getsignal(number) is _clean_up:
            signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=_restore_in_child)
