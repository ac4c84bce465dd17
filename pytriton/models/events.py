"""What the rest of the program learns about bound models while they are served."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable

from pytriton.exceptions import PyTritonUnrecoverableError


@dataclasses.dataclass(frozen=True)
class ModelEvents:
    """Callbacks for what happens to bound models; they are called in any thread.

    Attributes:
        on_unrecoverable: Called with a PyTritonUnrecoverableError that an inference callable raised.
        on_hang: Called with a model's name and True for each call of its callable that takes too long, and with False
            at its end.
        on_failing: Called with a model's name and True once none of its instances can be restarted, and with False once
            one has been, or the model is closed.
    """

    on_unrecoverable: Callable[[PyTritonUnrecoverableError], None]
    on_hang: Callable[[str, bool], None]
    on_failing: Callable[[str, bool], None]


class FailingInstances:
    """Notes which instances of a model cannot be restarted.

    Args:
        instances: Number of the model's instances.
        on_all: Called with True once all of them fail, and with False once one no longer does.
    """

    def __init__(self, instances: int, on_all: Callable[[bool], None]) -> None:
        self._instances = instances
        self._on_all = on_all
        self._failing = 0
        self._lock = threading.Lock()

    def note(self, fails: bool) -> None:
        """Notes that an instance has begun to fail, or no longer fails."""
        with self._lock:
            before = self._failing
            self._failing += 1 if fails else -1
            if self._instances in (before, self._failing):
                self._on_all(fails)
