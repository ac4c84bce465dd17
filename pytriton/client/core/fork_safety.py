"""Telling a process from the one that it was forked from.

A forked process has a copy of everything but threads, and shares the rest with its parent: connections, on which it
would read the other's answers, and memory, in which it would overwrite the other's tensors.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

from pytriton.client.exceptions import PyTritonClientClosedError

process = object()
"""Another object in each process."""

_first = process
_inherited: weakref.WeakSet[Any] = weakref.WeakSet()
_kept: list[Any] = []


def is_child() -> bool:
    """Returns whether this process was forked from one that had imported this module."""
    return process is not _first


def error(what: str) -> PyTritonClientClosedError:
    """Makes the error of something that does not work in another process than its own.

    Args:
        what: What it is, as it stands at the beginning of the message.
    """
    return PyTritonClientClosedError(
        f"{what} was made in the process that this one was forked from; make another one in this process."
    )


def keep_in_children(thing: Any) -> None:
    """Keeps forked processes from ever deleting an object.

    What libraries do when a connection of theirs is deleted reaches the parent: an event loop's list of sockets is the
    parent's, too, and gRPC waits for threads that are not there.
    """
    _inherited.add(thing)


def keep_of_parent(thing: Any, pid: int) -> bool:
    """Keeps an object alive that is being deleted, if it belongs to the parent of this forked process.

    Variables of the parent's other threads are deleted before a child knows that it is one; its process id shows it.

    Args:
        thing: What is being deleted.
        pid: The process that made it.

    Returns:
        Whether it is the parent's.
    """
    if pid == os.getpid():
        return False
    _kept.append(thing)
    return True


def _renew() -> None:
    global process
    process = object()
    _kept.extend(_inherited)
    _inherited.clear()
    if _kept:
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))  # else it is cleared when the interpreter ends


os.register_at_fork(after_in_child=_renew)
