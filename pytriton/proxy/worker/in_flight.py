"""Batches in flight, in concurrent mode."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytriton.proxy.tensors.batch import Batch
from pytriton.proxy.types import Request

if TYPE_CHECKING:
    import asyncio


class InFlightBatch:
    """A batch that the inference callable is serving."""

    def __init__(self, sequence: int, batch: Batch, requests: Sequence[Request]) -> None:
        self.sequence = sequence
        self.batch = batch
        self.requests = requests
        self.cancelled = bytes(batch.request_count)
        self.ended: set[int] = set()  # requests that have ended
        self.unwanted: set[int] = set()  # requests that have ended or were cancelled
        self.unsendable: set[int] = set()  # ended with an error because shared memory was full
        self.start_ns = time.monotonic_ns()
        self.task: asyncio.Task[None] | None = None
        self.end_reason: str | None = None  # why it ends early
        self.is_running = False  # whether its task may be cancelled: a task that has not started would send no response
        self.turn_s = 0.0  # when its thread last began to run, on the clock of ``time.monotonic()``
        self.gave_way_to = 0  # the number of the last batch that its thread waited for
        self.has_returned = False  # whether the callable has returned; deferred responses may still follow

    @property
    def is_wanted(self) -> bool:
        """Whether any request still waits for responses."""
        return self.end_reason is None and len(self.unwanted) < len(self.requests)

    @property
    def has_ended(self) -> bool:
        """Whether the batch is complete."""
        return self.has_returned and len(self.ended) == len(self.requests)

    def end(self, reason: str | None = None) -> None:
        """Ends the callable early; called in the loop's thread."""
        self.end_reason = self.end_reason or reason
        if self.is_running and self.task is not None:
            self.is_running = False  # cancel only once: clean-up may take a while
            self.task.cancel()
