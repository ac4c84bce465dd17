"""Leaves sockets to the process that has opened them, rather than to its forks."""

from __future__ import annotations

import os
import socket
import weakref

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def close_in_forks(opened: socket.socket) -> None:
    """Closes a socket in processes that this one forks, such as those of `multiprocessing`.

    If they kept it open, the other side would not notice the end of this process before theirs, and a restarted program
    could not listen at its port.
    """
    _sockets.add(opened)


def _close_sockets() -> None:
    for each in list(_sockets):
        if each.fileno() >= 0:
            os.close(each.detach())  # `close` would wait for an event loop that uses it, and does not run here


os.register_at_fork(after_in_child=_close_sockets)
