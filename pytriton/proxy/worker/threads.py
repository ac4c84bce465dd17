"""The threads that run inference callables: an event loop, a pool, and the main thread of a worker process."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar

if TYPE_CHECKING:
    import asyncio

LOGGER = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_LAST_S = 1.0  # for cancelled tasks, which may not end


class EventLoop:
    """An event loop in its own thread, started on first use.

    Args:
        name: The thread's name.
        main_thread: Run it in this thread instead.
        loop: The loop to run there; a new one by default.
    """

    def __init__(
        self, name: str, main_thread: MainThread | None = None, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self._name = name
        self._main_thread = main_thread
        self._given = loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._ended.set()
        self._lock = threading.Lock()
        self._users = 0
        self._retired = False

    def get(self) -> asyncio.AbstractEventLoop:
        """Returns the running loop."""
        # Imported late, as everywhere in a worker: asyncio takes a sixth of startup, and few have a loop.
        from pytriton.proxy.worker.spinning_loop import new_event_loop

        with self._lock:
            if self._loop is None:
                self._loop = loop = self._given or new_event_loop()
                self._given = None
                self._ended = ended = threading.Event()
                if self._main_thread is not None:
                    self._main_thread.submit(lambda: self._run(loop, ended))
                else:
                    thread = threading.Thread(target=self._run, args=(loop, ended), name=self._name, daemon=True)
                    try:
                        thread.start()
                    except RuntimeError:  # too many threads
                        self._loop, self._given = None, loop
                        ended.set()
                        raise
                    self._thread = thread
            return self._loop

    def enter(self) -> asyncio.AbstractEventLoop:
        """Returns the loop, which keeps running until `leave` or `stop`."""
        with self._lock:
            self._users += 1
        try:
            return self.get()
        except BaseException:  # too many open files or threads
            self.leave()
            raise

    def leave(self) -> None:
        """Undoes one `enter`."""
        with self._lock:
            self._users -= 1
            is_last = self._retired and self._users == 0
        if is_last:
            self.stop()

    def retire(self) -> None:
        """Stops the loop as soon as it has no users."""
        with self._lock:
            self._retired = True
            is_empty = self._users == 0
        if is_empty:
            self.stop()

    def stop(self) -> None:
        """Stops the loop after its current work; waiting tasks are cancelled."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # its thread has closed it already
                loop.call_soon_threadsafe(loop.stop)

    def join(self, timeout_s: float) -> None:
        """Waits after `stop` until cancelled tasks have cleaned up; does nothing in the loop's own thread.

        Args:
            timeout_s: How long to wait.
        """
        if self._thread is None:
            self._ended.wait(timeout_s)
        elif self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self, loop: asyncio.AbstractEventLoop, ended: threading.Event) -> None:
        import asyncio

        asyncio.set_event_loop(loop)
        try:
            while self._loop is loop:
                self._run_until_it_ends(loop)
            # Let tasks start before they are cancelled, so that they clean up and await their coroutines.
            loop.run_until_complete(asyncio.sleep(0))
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=_LAST_S))
            closing = loop.create_task(loop.shutdown_asyncgens())
            loop.run_until_complete(asyncio.wait([closing], timeout=_LAST_S))
        finally:
            loop.close()
            ended.set()

    def _run_until_it_ends(self, loop: asyncio.AbstractEventLoop) -> None:
        """Runs the loop, and restarts it if the model stops it."""
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            if self._main_thread is not None:  # exits the process, which is restarted
                raise
            LOGGER.exception("%s: the model ended its event loop, which is restarted.", self._name)
        else:
            if self._loop is loop:
                LOGGER.warning("%s: the model stopped its event loop, which is restarted.", self._name)


class ThreadPool:
    """A pool of daemon threads, started when there is work for them.

    Args:
        size: The largest number of threads.
        name: The name of each thread.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._busy = 0

    def submit(self, work: Callable[[], None]) -> None:
        """Runs a function in a thread; it must not raise an exception.

        Raises:
            RuntimeError: There is no thread, and the system cannot create one.
        """
        with self._lock:
            self._busy += 1
            if self._busy > self._threads and self._threads < self._size:
                self._start_thread()
        self._work.put(work)

    def _start_thread(self) -> None:
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:  # the system cannot create another thread
            if self._threads:  # a running one will get to it
                return
            self._busy -= 1
            raise
        self._threads += 1

    def stop(self) -> None:
        """Ends the threads, each after its current work."""
        with self._lock:
            threads, self._threads = self._threads, 0
        for _ in range(threads):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # it may refer to a batch
            with self._lock:
                self._busy -= 1


class MainThread:
    """The main thread of a worker process, which runs all code of the model, while another one handles commands.

    Some code requires a single thread, or the main one: databases, signal handlers, per-thread settings.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.wake: Callable[[], None] | None = None
        """Wakes the thread from a wait within its current work, so that it calls `run_submitted`."""

    def run(self) -> NoReturn:
        """Runs submitted functions in the calling thread until the process exits."""
        while True:
            work = self._work.get()
            work()
            del work  # it may refer to a batch

    def run_submitted(self) -> None:
        """Runs the functions submitted so far, in the calling thread."""
        for _ in range(self._work.qsize()):
            self._work.get()()

    def submit(self, work: Callable[[], object]) -> None:
        """Runs a function after those submitted before; it must not raise an exception."""
        self._work.put(work)
        if (wake := self.wake) is not None:
            wake()

    def call(
        self, function: Callable[[], _Result], timeout_s: float | None = None, limit_s: float | None = None
    ) -> _Result:
        """Runs a function, and returns its result or raises its exception.

        Args:
            function: The function.
            timeout_s: How long to wait for the thread to become free.
            limit_s: How long the function may run.

        Raises:
            TimeoutError: The thread is still busy, and the function will not run; or the function has not returned.
        """
        outcome: list[tuple[_Result | None, BaseException | None]] = []
        taken, done = threading.Lock(), threading.Event()  # the one who acquires the lock decides

        def run() -> None:
            if not taken.acquire(blocking=False):
                return
            begun.set()
            try:
                outcome.append((function(), None))
            except BaseException as error:  # SystemExit as well
                outcome.append((None, error))
            done.set()

        begun = threading.Event()
        self.submit(run)
        if not begun.wait(timeout_s) and taken.acquire(blocking=False):
            raise TimeoutError("the main thread is busy")
        if not done.wait(limit_s):
            raise TimeoutError(f"the main thread has not finished after {limit_s:g} s")
        result, error = outcome[0]
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def stop(self) -> None:
        """Does nothing: the thread ends with the process."""
