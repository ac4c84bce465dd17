"""Who waits for the replies to a question over a service channel, in a thread or in an event loop."""

from __future__ import annotations

import collections
import contextlib
import threading
from typing import TYPE_CHECKING

from pytriton.proxy.services.messages import InferenceReply

if TYPE_CHECKING:
    import asyncio


class PendingCall:
    """Whoever waits for replies to one question. Made by `ReplyDispatcher.submit`.

    Attributes:
        number: Of the question.
        replies: What has come.
        dropped: Whether it does not wait any more.
        signal: Set for it, while it waits for another thread that reads.
        future: Set for it, while it waits in its loop.
        loop: That loop, or None.
        thread: Where it was made.
    """

    __slots__ = ("cancelled", "future", "loop", "number", "replies", "signal", "thread")

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop | None) -> None:
        """Waits in a thread, or in the loop that is running."""
        self.number = number
        self.replies: collections.deque[InferenceReply | int] = collections.deque()
        self.cancelled = False
        self.signal: threading.Event | None = None
        self.future: asyncio.Future[None] | None = None
        self.loop = loop
        self.thread = threading.get_ident()

    def wake(self) -> None:
        """Tells it that there is a reply, or that there will be none; or that it is to read."""
        signal = self.signal
        if signal is not None:
            signal.set()
        if self.loop is None:
            return
        if threading.get_ident() == self.thread:
            self._set()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                self.loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)
