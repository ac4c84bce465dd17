"""Sleeps that end early when the client is closed."""

from __future__ import annotations

import asyncio
import threading

from pytriton.client.core.failures import closed_meanwhile


class Pauses:
    """Pauses of threads."""

    def __init__(self) -> None:
        """Creates an object without pauses."""
        self._ended = threading.Event()

    def sleep(self, seconds: float) -> None:
        """Sleeps until the time has passed or `end` is called.

        Raises:
            PyTritonClientClosedError: The client was closed.
        """
        if self._ended.wait(seconds):
            raise closed_meanwhile()

    def end(self) -> None:
        """Ends all current and future pauses."""
        self._ended.set()


class AsyncioPauses:
    """Pauses of the tasks of an event loop."""

    def __init__(self) -> None:
        """Creates an object without pauses."""
        self._ended = False
        self._pauses: set[asyncio.Future[None]] = set()

    async def sleep(self, seconds: float) -> None:
        """Sleeps; see `Pauses.sleep`."""
        pause = asyncio.get_running_loop().create_future()
        self._pauses.add(pause)
        try:
            if not self._ended:
                await asyncio.wait([pause], timeout=seconds)
        finally:
            self._pauses.discard(pause)
        if self._ended:
            raise closed_meanwhile()

    def end(self) -> None:
        """Ends all current and future pauses of the running loop."""
        self._ended = True
        for pause in self._pauses:
            if pause.get_loop() is asyncio.get_running_loop() and not pause.done():
                pause.set_result(None)
