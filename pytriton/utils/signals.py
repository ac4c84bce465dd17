"""Signals that stop a serving program."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from types import FrameType

LOGGER = logging.getLogger(__name__)


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def wake_on_signals(woken: threading.Event) -> Iterator[None]:
    """Sets the event on SIGINT, SIGTERM and SIGHUP, if this is the main thread."""

    def wake(number: int, _: FrameType | None) -> None:
        LOGGER.info("Stopping on %s.", signal.Signals(number).name)
        woken.set()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A signal that is ignored, as in a background job, stays ignored.
    numbers = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, wake) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
