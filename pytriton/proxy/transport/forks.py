"""Detects that a process is a fork of one that serves models, and leaves the connections to the latter."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import weakref
from typing import NoReturn

LOGGER = logging.getLogger(__name__)

_EXIT_STATUS = 1


class _Forks:
    count = 0

    def increment(self) -> None:
        self.count += 1


FORKS = _Forks()
"""Its `count` is higher in a child process than in its parent."""

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def close_in_forks(connected: socket.socket) -> None:
    """Closes a socket in processes that this one forks, such as those of `multiprocessing`.

    If they kept it open, the other side would not notice the end of this process before theirs.
    """
    _sockets.add(connected)


def _close_sockets() -> None:
    for each in list(_sockets):
        with contextlib.suppress(OSError):
            each.close()


os.register_at_fork(after_in_child=FORKS.increment)
os.register_at_fork(after_in_child=_close_sockets)


def exit_fork(model: str) -> NoReturn:
    """Exits a process that an inference callable has forked and that returned from the callable.

    Its parent responds to the requests, and owns the shared memory and the connections.
    """
    LOGGER.error(
        "A process that the inference callable of model %r forked has left the callable, and exits here: exit in the "
        "callable, with os._exit.",
        model,
    )
    os._exit(_EXIT_STATUS)
