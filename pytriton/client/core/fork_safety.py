"""Detects forked processes, and protects their parent.

A forked process has a copy of everything but threads, and shares open resources with its parent: connections, on which
it would read the parent's responses, and memory, in which it would overwrite the parent's tensors.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, NoReturn

from pytriton.client.exceptions import PyTritonClientClosedError

process = object()
"""An object that is different in each process."""

_inherited: weakref.WeakSet[Any] = weakref.WeakSet()
_kept: list[Any] = []


def error(what: str) -> PyTritonClientClosedError:
    """Creates the error of an object that works only in the process that created it.

    Args:
        what: The object, at the start of the message.
    """
    return PyTritonClientClosedError(
        f"{what} was made in the process that this one was forked from; create another one in this process."
    )


def keep_in_children(thing: Any) -> None:
    """Keeps forked processes from ever deleting an object.

    Deleting a connection affects the parent: an event loop's list of sockets is shared with it, and gRPC waits for
    threads that do not exist in the child.
    """
    _inherited.add(thing)


def _renew() -> None:
    global process
    process = object()
    _kept.extend(_inherited)
    _inherited.clear()
    if _kept:
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))  # otherwise it is cleared when the interpreter exits


def refuse_copy(client: object) -> NoReturn:
    """Raises the error for a client that cannot be copied or pickled."""
    name = type(client).__name__
    raise TypeError(f"{name} cannot be copied, or sent to another process; create one there, with the same arguments.")


os.register_at_fork(after_in_child=_renew)
