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

_MOST_LEFT = 64  # more would make the holder late, and those who queue work even later


class CombiningLock(Generic[_Item]):
    """A lock that queues work for the thread that holds it.

    Args:
        do: Does the queued work, in order, with the lock held: a method of the object that owns the lock.
    """

    def __init__(self, do: Callable[[list[_Item]], None]) -> None:
        self._do = weakref.WeakMethod(do)  # a reference cycle would keep that object's shared memory mapped
        self._lock = threading.Lock()
        self._left: collections.deque[_Item] = collections.deque()
        self._waiting: collections.deque[None] = collections.deque()  # an item for each thread that waits for the lock

    def __enter__(self) -> None:
        """Waits for the lock, and does the queued work."""
        if not self._lock.acquire(blocking=False):
            self._waiting.append(None)
            try:
                self._lock.acquire()
            finally:
                self._waiting.pop()
        self._do_left()

    def __exit__(self, *_: object) -> None:
        """Does the queued work, and releases the lock."""
        while True:
            try:
                self._do_left()
            finally:
                self._lock.release()
            # A thread that queued work just now may have found the lock taken. One that waits for it does that work.
            if not self._left or self._waiting or not self._lock.acquire(blocking=False):
                return

    def enter_if_free(self) -> bool:
        """Takes the lock like ``with`` if it is free. Returns whether it did; if so, call `__exit__` afterwards."""
        if not self._lock.acquire(blocking=False):
            return False
        self._do_left()
        return True

    def leave(self, item: _Item) -> None:
        """Queues work for the thread that holds the lock, or does it if the lock is free.

        Waits for the lock while much work is queued: threads that queue it without a pause would otherwise be faster
        than the one that does it.
        """
        if len(self._left) >= _MOST_LEFT:
            with self:
                self._left.append(item)
            return
        self._left.append(item)
        if self._lock.acquire(blocking=False):
            self.__exit__()

    def _do_left(self) -> None:
        left = self._left
        if left and (do := self._do()) is not None:
            do([left.popleft() for _ in range(len(left))])
