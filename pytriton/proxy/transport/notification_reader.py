"""Reads many notifications from a socket at a time, without giving up the interpreter in between.

A thread that gives up the interpreter for a system call may have to wait for it behind all other threads, which takes
far longer than a system call that does not block.
"""

from __future__ import annotations

import ctypes
import errno
import socket

from pytriton.proxy.wire.notification import NOTIFICATION

_COUNT = 64

_recvmmsg = ctypes.PyDLL(None, use_errno=True).recvmmsg  # keeps the GIL
_recvmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Message(ctypes.Structure):
    """``struct mmsghdr``."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_size", ctypes.c_uint32),
        ("vectors", ctypes.c_void_p),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_size", ctypes.c_size_t),
        ("flags", ctypes.c_long),  # an int, and four bytes to the end of ``struct msghdr``
        ("received", ctypes.c_uint32),
    )


class NotificationReader:
    """Reads notifications from a SEQPACKET socket.

    Args:
        connected: The socket.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._fd = connected.fileno()
        self._data = ctypes.create_string_buffer(_COUNT * NOTIFICATION.size)
        self._view = memoryview(self._data)
        start = ctypes.addressof(self._data)
        self._vectors = (_Vector * _COUNT)(
            *(_Vector(start + number * NOTIFICATION.size, NOTIFICATION.size) for number in range(_COUNT))
        )
        self._messages = (_Message * _COUNT)()
        for message, vector in zip(self._messages, self._vectors):
            message.vectors, message.vector_count = ctypes.addressof(vector), 1
        self._address = ctypes.addressof(self._messages)

    def read(self) -> list[tuple[int, int, int, int]] | None:
        """Returns the notifications that have come, at most 64 of them; None if the other side has gone."""
        count = _recvmmsg(self._fd, self._address, _COUNT, socket.MSG_DONTWAIT, None)
        if count < 0:
            return [] if ctypes.get_errno() in (errno.EAGAIN, errno.EINTR) else None
        messages = self._messages
        for number in range(count):
            if messages[number].received != NOTIFICATION.size:
                return None if number == 0 else list(NOTIFICATION.iter_unpack(self._view[: number * NOTIFICATION.size]))
        return list(NOTIFICATION.iter_unpack(self._view[: count * NOTIFICATION.size]))
