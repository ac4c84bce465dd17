"""Debouncing: repeated requests lead to one call, after the last of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Debouncer:
    """Calls a function in a thread, once it has not been requested for a while.

    Args:
        pause_s: How long to wait after a request for another one, in seconds.
        function: The function; it must not raise anything.
        name: The name of the thread.
    """

    def __init__(self, pause_s: float, function: Callable[[], None], name: str) -> None:
        self._pause_s = pause_s
        self._function = function
        self._name = name
        self._lock = threading.Lock()
        self._due = 0.0  # time.monotonic()
        self._is_waiting = False

    def request(self) -> None:
        """Requests a call; postpones one that was requested before."""
        with self._lock:
            self._due = time.monotonic() + self._pause_s
            if not self._is_waiting:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
                self._is_waiting = True

    def _run(self) -> None:
        while (left_s := self._left_s()) > 0:
            time.sleep(left_s)
        self._function()

    def _left_s(self) -> float:
        with self._lock:
            left_s = self._due - time.monotonic()
            self._is_waiting = left_s > 0
            return left_s
