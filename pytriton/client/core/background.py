"""Request logic that runs in the background, such as disconnecting from a server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable

from pytriton.client.core.sansio import Steps, run, run_async

LOGGER = logging.getLogger(__name__)


class BackgroundThreads:
    """Runs blocking steps, each in its own thread."""

    def __init__(self) -> None:
        self._threads: set[threading.Thread] = set()

    def run(self, steps: Steps[None]) -> None:
        """Runs steps; errors are logged at level DEBUG."""
        thread = threading.Thread(target=self._run, args=(steps,), name="pytriton-background", daemon=True)
        self._threads.add(thread)
        with contextlib.suppress(RuntimeError):  # the interpreter is exiting
            thread.start()

    def wait(self) -> None:
        """Waits for all running steps."""
        for thread in list(self._threads):
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join()

    def _run(self, steps: Steps[None]) -> None:
        try:
            run(steps)
        except Exception:
            LOGGER.debug("Steps in the background failed.", exc_info=True)
        finally:
            self._threads.discard(threading.current_thread())


class BackgroundTasks:
    """Runs steps that return awaitables, each in a task of the running loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, steps: Steps[None]) -> None:
        """Runs steps; errors are logged at level DEBUG. Does nothing without a loop: connections end with theirs."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        task = loop.create_task(run_async(steps))
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    async def wait(self) -> None:
        """Waits for all steps that are running in this loop."""
        tasks = [task for task in self._tasks if task.get_loop() is asyncio.get_running_loop()]
        if tasks:
            await asyncio.wait(tasks)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            LOGGER.debug("Steps in the background failed.", exc_info=error)


InBackground = Callable[[Steps[None]], None]
"""Runs steps in the background."""
