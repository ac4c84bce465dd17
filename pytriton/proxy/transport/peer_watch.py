"""Watches all connections of a process in one thread, and notices when the other side closes one.

So the threads of idle workers can sleep without a timeout: thousands of them take no processor time.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable


class PeerWatch:
    """Calls a function once when a socket is readable or its other side has disconnected.

    The thread is started with the first socket.
    """

    def __init__(self) -> None:
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._lock = threading.Lock()
        self._epoll: select.epoll | None = None
        self._owner = 0  # the process that the thread belongs to

    def add(self, fd: int, callback: Callable[[], object]) -> None:
        """Watches a socket until `remove`.

        Args:
            fd: Its file descriptor.
            callback: Called in the thread, occasionally without an event.

        Raises:
            OSError: It cannot be watched.
            RuntimeError: The system cannot create the thread.
        """
        with self._lock:
            if self._epoll is None or self._owner != os.getpid():
                self._start()
            assert self._epoll is not None
            self._callbacks[fd] = callback
            self._epoll.register(fd, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT)

    def remove(self, fd: int) -> None:
        """Stops watching a socket, which must not be closed yet."""
        with self._lock:
            if self._callbacks.pop(fd, None) is not None and self._epoll is not None:
                with contextlib.suppress(OSError):  # an inference callable may have closed the descriptor
                    self._epoll.unregister(fd)

    def _start(self) -> None:
        epoll = select.epoll()
        threading.Thread(target=self._run, args=(epoll,), name="pytriton-peers", daemon=True).start()
        self._callbacks = {}  # drops those of the parent in a fork
        self._owner = os.getpid()
        self._epoll = epoll

    def _run(self, epoll: select.epoll) -> None:
        while True:
            for fd, _ in epoll.poll():
                self._notify(fd)

    def _notify(self, fd: int) -> None:  # separate: the waiting thread must not keep a connection
        callback = self._callbacks.get(fd)
        if callback is not None:
            callback()


PEERS = PeerWatch()
"""The connections of this process."""
