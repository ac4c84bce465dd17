"""Reads many notifications from a socket at a time, without releasing the interpreter.

A thread that releases the interpreter for a system call may then have to wait for all other threads, which takes far
longer than a non-blocking system call.
"""

from __future__ import annotations

import ctypes
import errno
import socket

from pytriton.proxy.transport.message_vector import MessageVector
from pytriton.proxy.wire.notification import NOTIFICATION

_COUNT = 64

_recvmmsg = ctypes.PyDLL(None, use_errno=True).recvmmsg  # keeps the GIL
_recvmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)


class NotificationReader:
    """Reads notifications from a SEQPACKET socket.

    Args:
        connected: The socket.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._fd = connected.fileno()
        self._vector = MessageVector(_COUNT, NOTIFICATION.size)
        self.has_ended = False
        """Whether the other side had disconnected at the last `read`, even if that returned notifications."""

    def read(self) -> list[tuple[int, int, int, int]] | None:
        """Returns the notifications that have arrived, at most 64; None if the other side has disconnected."""
        vector = self._vector
        count = _recvmmsg(self._fd, vector.address, _COUNT, socket.MSG_DONTWAIT, None)
        if count < 0:
            self.has_ended = ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR)
            return None if self.has_ended else []
        for number in range(count):
            if vector.done(number) != NOTIFICATION.size:
                self.has_ended = True
                return None if number == 0 else list(NOTIFICATION.iter_unpack(vector.data[: number * vector.size]))
        return list(NOTIFICATION.iter_unpack(vector.data[: count * vector.size]))
