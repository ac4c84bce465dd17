"""The control channel of a worker process and its supervisor. Counterpart of ``backend/transport/control_channel.h``.

It is a stream socket that exists as long as both processes do. The supervisor sends commands and the process replies,
one at a time. A frame is its size (64 bits, little-endian) followed by a message of ``wire/control.py``.
"""

from __future__ import annotations

import contextlib
import socket
import struct

_SIZE = struct.Struct("<q")


class ControlChannel:
    """One end of a control channel.

    Args:
        connected: The socket.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def fileno(self) -> int:
        """Returns the socket's descriptor: readable if a frame has arrived or the other side disconnected."""
        return self._socket.fileno()

    def send(self, frame: bytes) -> None:
        """Sends a frame.

        Raises:
            OSError: The other side has disconnected.
        """
        self._socket.sendall(_SIZE.pack(len(frame)) + frame)

    def receive(self, timeout_s: float | None = None) -> bytes:
        """Waits for a frame.

        Args:
            timeout_s: How long to wait for each part of it; None waits forever.

        Raises:
            EOFError: The other side has disconnected.
            TimeoutError: Nothing arrived for ``timeout_s`` seconds.
        """
        self._socket.settimeout(timeout_s)
        return self._take(_SIZE.unpack(self._take(_SIZE.size))[0])

    def _take(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._socket.recv(min(size - len(data), 1 << 20))
            except (TimeoutError, socket.timeout):  # two exceptions in Python 3.9
                raise TimeoutError("the other end of the control channel is silent") from None
            except OSError as error:
                raise EOFError from error
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def close(self) -> None:
        """Closes the channel, which the other side notices."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
