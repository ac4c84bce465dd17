"""Sends notifications over a socket without releasing the interpreter, unless that blocks.

A thread that releases the interpreter for a system call may then have to wait for all other threads, and threads that
need a lock of this one wait as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import select
import socket
import threading
from collections.abc import Callable, Sequence

from pytriton.proxy.transport.message_vector import MessageVector
from pytriton.proxy.wire.notification import NOTIFICATION

_COUNT = 64
_LOOK_MS = 100  # after which it tries again
_FLAGS = int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)

_send = ctypes.PyDLL(None).send  # keeps the GIL
_send.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
_send.restype = ctypes.c_ssize_t
_sendmmsg = ctypes.PyDLL(None).sendmmsg
_sendmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)


class NotificationSender:
    """Sends notifications over a SEQPACKET socket. Safe to use from any threads at the same time.

    Args:
        connected: The socket. Its file may have been made non-blocking, as event loops do.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self.wake: Callable[[], None] | None = None
        """Called when there is no room, to make the other side read."""
        self._lock = threading.Lock()  # guards the vector
        self._vector: MessageVector | None = None

    def send(self, message: bytes) -> None:
        """Sends an encoded notification.

        Raises:
            OSError: The other side has disconnected.
        """
        while _send(self._socket.fileno(), message, len(message), _FLAGS) != len(message):
            try:
                self._socket.send(message, _FLAGS)  # raises the error
                return
            except BlockingIOError:
                self._wait_for_room()

    def send_several(self, messages: Sequence[bytes]) -> None:
        """Sends encoded notifications in their order, by one system call.

        Raises:
            OSError: The other side has disconnected.
        """
        if len(messages) == 1:
            self.send(messages[0])
            return
        for start in range(0, len(messages), _COUNT):
            part = messages[start : start + _COUNT]
            for message in part[self._send_at_once(part) :]:
                self.send(message)

    def _wait_for_room(self) -> None:
        if self.wake is not None:
            self.wake()
        poll = select.poll()
        with contextlib.suppress(ValueError):  # another thread has closed the socket: the next attempt raises the error
            poll.register(self._socket, select.POLLOUT)
            poll.poll(_LOOK_MS)

    def _send_at_once(self, messages: Sequence[bytes]) -> int:
        """Returns the number of messages sent: there may not be room for all."""
        with self._lock:
            if self._vector is None:
                self._vector = MessageVector(_COUNT, NOTIFICATION.size)
            self._vector.data[: len(messages) * NOTIFICATION.size] = b"".join(messages)
            sent: int = _sendmmsg(self._socket.fileno(), self._vector.address, len(messages), _FLAGS)
        return max(0, sent)
