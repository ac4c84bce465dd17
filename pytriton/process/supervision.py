"""Supervision of worker processes and actors: restarts them, with back-off, when they end.

The server's backend restarts the processes of models of a repository by the same policy: its build generates
``python_models/supervision_policy.h`` from the same file.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytriton.utils.back_off import BackOff
from pytriton.utils.console import log_safely

LOGGER = logging.getLogger(__name__)

_POLICY: dict[str, Any] = json.loads(Path(__file__).with_name("supervision.json").read_text(encoding="utf-8"))

BACK_OFF = BackOff(_POLICY["first_delay_ms"] / 1000, _POLICY["max_delay_ms"] / 1000)
"""The pauses before restarts. The first restart in a row comes without a pause."""

RESET_AFTER_S: float = _POLICY["reset_after_ms"] / 1000
"""A process that has lived for this many seconds is restarted without a pause."""

RESTARTING: str = _POLICY["restarting"]
"""The reason given to a model instance until the process has been restarted."""


class RestartDelays:
    """The delays before restarts in a row.

    Examples:
        >>> delays = RestartDelays()
        >>> [delays.after(lived_s=1.0) for _ in range(3)]
        [0.0, 0.1, 0.2]
        >>> delays.after(lived_s=3600.0)
        0.0
    """

    def __init__(self) -> None:
        self._failures = 0

    def after(self, lived_s: float) -> float:
        """Returns the delay before the next start, in seconds, after a process that has lived for `lived_s`."""
        if lived_s > RESET_AFTER_S:
            self._failures = 0
        delay_s = BACK_OFF.pause_s(self._failures) if self._failures else 0.0
        self._failures += 1
        return delay_s


class RestartLoop:
    """Runs something repeatedly in a thread, until it is closed or the first run ends without having loaded.

    Args:
        name: What runs, in messages: ``"worker process of model 'm' (instance 0)"``.
        thread_name: The name of the thread.
        live: Runs it once; calls `note_loaded` as soon as it has loaded. Returns how it ended, in words, and whether
            it had loaded.
        on_end: Called after each run with what ``live`` returned and whether that was the last run.
        on_failing: Called with True when a restart cannot load, and with False when a later one has loaded,
            or the loop ends.
    """

    def __init__(
        self,
        name: str,
        thread_name: str,
        live: Callable[[], tuple[str, bool]],
        on_end: Callable[[str, bool, bool], None],
        on_failing: Callable[[bool], None],
    ) -> None:
        self.restarts = 0
        """Number of restarts so far."""
        self.closing = threading.Event()
        """Set when it is no longer needed."""
        self.settled = threading.Event()
        """Set once the first run has loaded, or has ended without loading."""
        self._name = name
        self._live = live
        self._on_end = on_end
        self._on_failing = on_failing
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it is running, or will run again."""
        return self._thread.is_alive()

    def join(self, timeout_s: float | None = None) -> None:
        """Waits for the end of the last run.

        Args:
            timeout_s: How long to wait; None for no limit.
        """
        self._thread.join(timeout_s)

    def note_loaded(self) -> None:
        """Notes that the current run has loaded."""
        self._set_failing(False)
        self.settled.set()

    def note_failing(self) -> None:
        """Notes that the current run, a restart, cannot load for now."""
        self._set_failing(True)

    def _set_failing(self, fails: bool) -> None:
        if fails != self._is_failing:
            self._is_failing = fails
            self._on_failing(fails)

    def _run(self) -> None:
        try:
            self._repeat()
        finally:
            self._set_failing(False)

    def _repeat(self) -> None:
        delays = RestartDelays()
        while not self.closing.is_set():
            start = time.monotonic()
            how, has_loaded = self._live()
            if self.closing.is_set() or not self.settled.is_set():
                self._on_end(how, has_loaded, True)
                self.settled.set()
                return
            delay_s = delays.after(time.monotonic() - start)
            self.restarts += 1
            restarting = f"restarting in {delay_s:g} s" if delay_s else "restarting"
            log_safely(LOGGER, logging.ERROR, "%s %s; %s", self._name, how, restarting)
            self._on_end(how, has_loaded, False)
            if not has_loaded:
                self.note_failing()
            self.closing.wait(delay_s)
