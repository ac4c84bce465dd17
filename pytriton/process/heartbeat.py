"""The heartbeat of a worker process: notices that it no longer responds at all, not even by its own watchdog."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

from pytriton.utils.console import log_safely

LOGGER = logging.getLogger(__name__)

_SHORTEST_PAUSE_S = 0.25
_PAUSES = 6  # 1.5 times the limit, so that the process's own watchdog, which shows the stacks, comes first


class Heartbeat:
    """Kills a process that has not responded for too long: one that is stopped, or does not release the GIL.

    Time in which this process itself does not run, because both are stopped, does not count.

    Args:
        name: What the process is of, in messages: ``"model 'm' (instance 0)"``.
        limit_s: ``ModelConfig.watchdog_secs``.
        ask: Asks the process to respond, and calls its argument when it has.
        kill: Kills the process.
    """

    def __init__(
        self, name: str, limit_s: float, ask: Callable[[Callable[[], None]], None], kill: Callable[[], None]
    ) -> None:
        self._name = name
        self._limit_s = limit_s
        self._ask = ask
        self._kill = kill
        self._ended = threading.Event()
        self._responded = threading.Event()

    def start(self) -> None:
        """Starts to check the process in a thread, if there can be another."""
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._run, name="pytriton-heartbeat", daemon=True).start()

    def end(self) -> None:
        """Stops the checks: the process has exited, or is about to."""
        self._ended.set()

    def _run(self) -> None:
        pause_s = max(self._limit_s / 4, _SHORTEST_PAUSE_S)
        missed = 0
        self._ask(self._responded.set)
        while not self._ended.wait(pause_s):
            if self._responded.is_set():
                missed = 0
                self._responded.clear()
                self._ask(self._responded.set)
                continue
            missed += 1
            if missed == _PAUSES:
                log_safely(
                    LOGGER,
                    logging.ERROR,
                    "The process of %s has not responded for %g s, and is killed: it is stopped, or a call of its "
                    "inference callable does not release the GIL (ModelConfig.watchdog_secs is %g).",
                    self._name,
                    missed * pause_s,
                    self._limit_s,
                )
                self._kill()
                return
