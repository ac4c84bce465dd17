"""An event loop in its own thread, for clients outside asyncio."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pytriton.client.core import fork_safety
from pytriton.client.exceptions import PyTritonClientClosedError

T = TypeVar("T")

_LIBRARIES_TIMEOUT_S = 1.0


class LoopThread:
    """An event loop that runs in a thread, which starts on first use.

    Args:
        name: The thread's name.
    """

    def __init__(self, name: str) -> None:
        """Stores the name."""
        self._name = name
        self._process = fork_safety.process
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._tasks: set[asyncio.Task[Any]] = set()

    def submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        """Runs a coroutine in the loop.

        Args:
            make: Creates the coroutine; called in the loop, so that every coroutine is run.

        Returns:
            Its result; cancelling it cancels the coroutine.

        Raises:
            PyTritonClientClosedError: The loop was stopped, or runs in the process that this one was forked from.
        """
        if self._process is not fork_safety.process:
            raise fork_safety.error("The client")
        with self._lock:  # nothing must be started after the end
            if self._stopped:
                raise PyTritonClientClosedError("The client is closed; create another one.")
            return asyncio.run_coroutine_threadsafe(self._own(make), self._started())

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine in the loop and waits for its result; an interrupt cancels it."""
        future = self.submit(make)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise PyTritonClientClosedError("The client was closed while it waited for a response.") from None
        except BaseException:
            future.cancel()
            raise

    def is_current(self) -> bool:
        """Returns whether this is the loop's thread."""
        return threading.current_thread() is self._thread

    def stop(self, last: Callable[[], Coroutine[Any, Any, object]], *, drain: bool = False, wait: bool = True) -> None:
        """Ends the thread; nothing can be run afterwards.

        Args:
            last: A coroutine to run at the end.
            drain: Wait for running coroutines; otherwise they are cancelled.
            wait: Wait for the end, unless this is the loop's thread.
        """
        if self._process is not fork_safety.process:
            return
        with self._lock:
            stopped, self._stopped = self._stopped, True
            loop, thread = self._loop, self._thread
            if loop is not None and not stopped:
                asyncio.run_coroutine_threadsafe(self._end(loop, last, drain), loop)
        if thread is not None and wait and not self.is_current():
            thread.join()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run, args=(self._loop,), name=self._name, daemon=True)
            self._thread.start()
        return self._loop

    async def _own(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Keeps track of the client's own tasks, as opposed to those of libraries."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await make()
        finally:
            self._tasks.discard(task)

    async def _end(
        self, loop: asyncio.AbstractEventLoop, last: Callable[[], Coroutine[Any, Any, object]], drain: bool
    ) -> None:
        try:
            tasks = list(self._tasks)
            if not drain:
                for task in tasks:
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await last()
            # gRPC reports the end of its calls to the loop, and logs an error if that is closed.
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                await asyncio.wait(others, timeout=_LIBRARIES_TIMEOUT_S)
        finally:
            loop.call_soon(loop.stop)


def is_being_cancelled() -> bool:
    """Returns whether the running task itself was cancelled, not what it awaits; False before Python 3.11."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return cancelling is not None and cancelling() > 0


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
