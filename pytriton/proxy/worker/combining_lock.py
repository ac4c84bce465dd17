"""Flat combining: a lock whose holder also does the work that other threads have queued.

Threads that acquire a lock one after another, with a switch of the interpreter each time, obstruct each other (a lock
convoy). See Hendler et al., "Flat Combining and the Synchronization-Parallelism Tradeoff", 2010.
"""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class CombiningLock(Generic[_Item]):
    """A lock that queues work for the thread that holds it.

    Args:
        do: Does the queued work, in order, with the lock held: a method of the object that owns the lock.
    """

    def __init__(self, do: Callable[[list[_Item]], None]) -> None:
        self._do = weakref.WeakMethod(do)  # a reference cycle would keep that object's shared memory mapped
        self._lock = threading.Lock()
        self._left: collections.deque[_Item] = collections.deque()

    def __enter__(self) -> None:
        """Waits for the lock, and does the queued work."""
        self._lock.acquire()
        self._do_left()

    def __exit__(self, *_: object) -> None:
        """Does the queued work, and releases the lock."""
        while True:
            try:
                self._do_left()
            finally:
                self._lock.release()
            # A thread that queued work just now may have found the lock taken.
            if not self._left or not self._lock.acquire(blocking=False):
                return

    def enter_if_free(self) -> bool:
        """Takes the lock like ``with`` if it is free. Returns whether it did; if so, call `__exit__` afterwards."""
        if not self._lock.acquire(blocking=False):
            return False
        self._do_left()
        return True

    def leave(self, item: _Item) -> None:
        """Queues work for the thread that holds the lock, or does it if the lock is free."""
        self._left.append(item)
        if self._lock.acquire(blocking=False):
            self.__exit__()

    def _do_left(self) -> None:
        left = self._left
        if left and (do := self._do()) is not None:
            do([left.popleft() for _ in range(len(left))])
