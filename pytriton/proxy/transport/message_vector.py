"""The arguments of ``recvmmsg`` and ``sendmmsg``: many messages of equal size for one system call."""

from __future__ import annotations

import ctypes


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
        ("done", ctypes.c_uint32),
    )


class MessageVector:
    """A buffer of consecutive messages.

    Args:
        count: The number of messages.
        size: The size of each in bytes.
    """

    def __init__(self, count: int, size: int) -> None:
        self._buffer = ctypes.create_string_buffer(count * size)
        start = ctypes.addressof(self._buffer)
        self._vectors = (_Vector * count)(*(_Vector(start + number * size, size) for number in range(count)))
        self._messages = (_Message * count)()
        for message, vector in zip(self._messages, self._vectors):
            message.vectors, message.vector_count = ctypes.addressof(vector), 1
        self.size = size
        self.data = memoryview(self._buffer).cast("B")
        self.address = ctypes.addressof(self._messages)

    def done(self, number: int) -> int:
        """Returns how many bytes of a message were received or sent."""
        done: int = self._messages[number].done
        return done
