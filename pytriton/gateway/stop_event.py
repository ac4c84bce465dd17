"""An event that is set when the gateway is about to stop."""

from __future__ import annotations

import asyncio


class StopEvent:
    """An event that is set when the gateway is about to stop.

    It may be waited for in any event loop, unlike `asyncio.Event`: an application in which the gateway is mounted may
    run in several, as in tests.
    """

    def __init__(self) -> None:
        self.is_set = False
        """Whether the gateway is about to stop."""
        self._waiting: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        """Sets the event; called in the event loop of those who wait."""
        self.is_set = True
        for each in self._waiting:
            if not each.done():
                each.set_result(None)

    async def wait(self) -> None:
        """Waits until it is set."""
        if self.is_set:
            return
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)
