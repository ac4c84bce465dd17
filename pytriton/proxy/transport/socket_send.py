"""Sends over a socket without giving up the interpreter, unless that blocks.

A thread that gives up the interpreter for a system call may have to wait for it behind all other threads; those of them
that wait for a lock of this thread do so meanwhile.
"""

from __future__ import annotations

import ctypes
import socket

_send = ctypes.PyDLL(None).send  # keeps the GIL
_send.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
_send.restype = ctypes.c_ssize_t
_FLAGS = int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)


def send(connected: socket.socket, message: bytes) -> None:
    """Sends a short message as a whole.

    Raises:
        OSError: The other side has gone.
    """
    if _send(connected.fileno(), message, len(message), _FLAGS) != len(message):
        connected.send(message, socket.MSG_NOSIGNAL)  # waits for room, or raises what is wrong
