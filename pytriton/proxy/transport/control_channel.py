"""What a worker process and its owner tell each other. Twin of ``backend/control.h``.

The owner starts the process, and holds it by a stream socket that is there for as long as both are. On it, the owner
asks and the process answers, one at a time. A frame is its size (64 bits, little-endian), then a message.
"""

from __future__ import annotations

import contextlib
import socket
import struct

_SIZE = struct.Struct("<q")


class ControlChannel:
    """One end of the socket."""

    def __init__(self, connected: socket.socket) -> None:
        """Speaks on ``connected``."""
        self._socket = connected

    def fileno(self) -> int:
        """The socket's descriptor, which is readable when a frame comes or the other side is gone."""
        return self._socket.fileno()

    def send(self, frame: bytes) -> None:
        """Sends a frame.

        Raises:
            OSError: The other side is gone.
        """
        self._socket.sendall(_SIZE.pack(len(frame)) + frame)

    def receive(self, timeout_s: float | None = None) -> bytes:
        """Waits for a frame.

        Args:
            timeout_s: How long to wait for any part of it, or None.

        Raises:
            EOFError: The other side is gone.
            TimeoutError: Nothing came for ``timeout_s`` seconds.
        """
        self._socket.settimeout(timeout_s)
        return self._take(_SIZE.unpack(self._take(_SIZE.size))[0])

    def _take(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._socket.recv(min(size - len(data), 1 << 20))
            except (TimeoutError, socket.timeout):  # two exceptions in Python 3.9
                raise TimeoutError("the other end of the leash is silent") from None
            except OSError as error:
                raise EOFError from error
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def close(self) -> None:
        """Lets go: the other side is told."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
