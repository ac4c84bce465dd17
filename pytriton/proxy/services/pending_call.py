"""A call over a service channel whose replies are awaited, in a thread or an event loop."""

from __future__ import annotations

import collections
import contextlib
import threading
from typing import TYPE_CHECKING

from pytriton.proxy.services.messages import InferenceReply
from pytriton.proxy.telemetry.propagation import RequestSpan

if TYPE_CHECKING:
    import asyncio


class PendingCall:
    """A call whose replies are awaited. Created by `ReplyDispatcher.submit`.

    Attributes:
        number: The number of the call.
        replies: Replies that have arrived but were not taken yet.
        cancelled: Whether the caller has stopped waiting.
        signal: Wakes the waiting thread while another thread reads (it is a follower).
        future: Wakes the waiting task.
        loop: The task's loop, or None.
        thread: The calling thread.
        span: The span of the call, whose activities the server reports; None if it is not traced.
    """

    __slots__ = ("cancelled", "future", "loop", "number", "replies", "signal", "span", "thread")

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop | None) -> None:
        self.number = number
        self.replies: collections.deque[InferenceReply | int] = collections.deque()
        self.cancelled = False
        self.signal: threading.Event | None = None
        self.future: asyncio.Future[None] | None = None
        self.loop = loop
        self.thread = threading.get_ident()
        self.span: RequestSpan | None = None

    def wake(self) -> None:
        """Wakes the waiter: a reply has arrived, there will be none, or it becomes the leader."""
        signal = self.signal
        if signal is not None:
            signal.set()
        if self.loop is None:
            return
        if threading.get_ident() == self.thread:
            self._set()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits any more
                self.loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)
