"""Batches that are on their way through a pipeline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pytriton.proxy.tensors.batch import Batch

if TYPE_CHECKING:
    import asyncio


class InFlightBatch:
    """A batch at the inference callable."""

    def __init__(self, sequence: int, batch: Batch) -> None:
        self.sequence = sequence
        self.batch = batch
        self.requests = batch.requests()
        self.cancelled = bytes(batch.request_count)
        self.ended: set[int] = set()  # requests that are answered for good
        self.unwanted: set[int] = set()  # those, and those that are cancelled
        self.unsendable: set[int] = set()  # those of them that were answered with an error in place of their outputs
        self.start_ns = time.monotonic_ns()
        self.task: asyncio.Task[None] | None = None
        self.end_reason: str | None = None  # why it ends before its time
        self.is_running = False  # so that its task can be cancelled: one that has not begun would answer nothing
        self.has_returned = False  # the callable has, which is not the end of it where answers are deferred

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits for more of it."""
        return self.end_reason is None and len(self.unwanted) < len(self.requests)

    @property
    def has_ended(self) -> bool:
        """Whether there is nothing more to do for it."""
        return self.has_returned and len(self.ended) == len(self.requests)

    def end(self, reason: str | None = None) -> None:
        """Has the callable stop; in the loop's thread."""
        self.end_reason = self.end_reason or reason
        if self.is_running and self.task is not None:
            self.is_running = False  # not again: what it does in the end may take a while
            self.task.cancel()
