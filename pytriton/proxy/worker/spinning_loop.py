"""An event loop that waits awake for a short while before it sleeps.

Imports asyncio, which takes a sixth of startup: to be imported late.
"""

from __future__ import annotations

import asyncio
import selectors
import time

from pytriton.proxy.transport.adaptive_spin import AdaptiveSpin
from pytriton.proxy.transport.spin_library import can_spin, spin_at_descriptor

_Events = list[tuple[selectors.SelectorKey, int]]

_SHORT_S = 0.001  # a timer that is due so soon is not worth spinning for


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Creates an event loop: one that spins, unless the program's policy creates loops of a kind of its own."""
    loop = asyncio.new_event_loop()
    if type(loop) is not asyncio.SelectorEventLoop or not can_spin():
        return loop
    loop.close()
    return SpinningEventLoop()


class SpinningSelector(selectors.EpollSelector):
    """A selector that polls for a short while before it sleeps, if events have lately come soon."""

    def __init__(self) -> None:
        super().__init__()
        self._spin = AdaptiveSpin()
        self.batch_size = 0
        """Number of requests in the latest batch, if one has arrived since the last `select`."""

    def select(self, timeout: float | None = None) -> _Events:
        """Waits for events.

        Args:
            timeout: For how many seconds; None for any time.

        Returns:
            The events that have happened.
        """
        if timeout is not None and timeout < _SHORT_S:
            return super().select(timeout)
        end = None if timeout is None else time.monotonic() + timeout
        batch_size, self.batch_size = self.batch_size, 0
        return self._spin.wait(self._poll, lambda: self._sleep(end), batch_size, self._linger) or []

    def _poll(self) -> _Events | None:
        return super().select(0) or None

    def _sleep(self, end: float | None) -> _Events | None:
        return super().select(None if end is None else max(0.0, end - time.monotonic()))

    def _linger(self, end_ns: int) -> bool:
        return spin_at_descriptor(self.fileno(), end_ns)


class SpinningEventLoop(asyncio.SelectorEventLoop):
    """An event loop with a `SpinningSelector`."""

    def __init__(self) -> None:
        self._spinning_selector = SpinningSelector()
        super().__init__(self._spinning_selector)

    def observe_batch_size(self, request_count: int) -> None:
        """Observes the number of requests in a batch: after a large one, the loop does not spin for a while."""
        self._spinning_selector.batch_size = request_count
