"""The channel between a model instance and its worker. Counterpart of ``backend/transport/channel.h``.

A Unix SEQPACKET socket carries the handshake, with the file descriptors of the arenas, and the notifications, unless
these go through a doorbell. A round trip costs two thread wake-ups, and a disconnected peer is noticed at once.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

from pytriton.proxy.transport.adaptive_spin import AdaptiveSpin
from pytriton.proxy.transport.doorbell import Doorbell
from pytriton.proxy.transport.notification_reader import NotificationReader
from pytriton.proxy.transport.notification_sender import NotificationSender
from pytriton.proxy.transport.peer_watch import PEERS
from pytriton.proxy.transport.unix_socket import receive_fds
from pytriton.proxy.wire.notification import NOTIFICATION, Notification
from pytriton.utils.forks import close_in_forks

IDLE_S = 1
"""Seconds that :meth:`Channel.receive` waits before it returns None, unless :meth:`Channel.rest` was called."""


class Channel:
    """One end of a connection."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        close_in_forks(connected)
        self._sender = NotificationSender(connected)
        self._reader: NotificationReader | None = None
        self._spin = AdaptiveSpin()
        self._doorbell: Doorbell | None = None
        self._acknowledgements: Doorbell | None = None
        self._is_closed = False
        self._rests = False
        self.is_woken = False
        """Whether `wake` was called; the caller of `receive` resets it."""
        # A timeout of Python's socket would cost another system call per notification.
        connected.setblocking(True)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", IDLE_S, 0))

    def send(self, notification: tuple[int, int, int, int], *fds: int) -> None:
        """Sends a `Notification`, or a tuple of its fields, together with file descriptors if any are given.

        Raises:
            OSError: The other side has disconnected.
        """
        if self._doorbell is not None:
            self._doorbell.notify(notification)
        elif fds:
            socket.send_fds(self._socket, [NOTIFICATION.pack(*notification)], fds)
        else:
            self._sender.send(NOTIFICATION.pack(*notification))

    def send_several(self, notifications: Sequence[Notification]) -> None:
        """Sends notifications over the socket, by one system call.

        Raises:
            OSError: The other side has disconnected.
        """
        self._sender.send_several([NOTIFICATION.pack(*notification) for notification in notifications])

    def receive(self, batch_size: int = 0) -> Notification | None:
        """Waits for a notification.

        Args:
            batch_size: Number of requests in the previous batch.

        Returns:
            The notification, or None if none arrived for ``IDLE_S`` seconds, or `wake` was called.

        Raises:
            EOFError: The other side has disconnected.
        """
        if self._doorbell is None:
            return self._spin.wait(self.receive_now, self._sleep, batch_size)
        return self._spin.wait(self._doorbell.take, self._sleep_at_doorbell, batch_size, self._doorbell.linger)

    def use_doorbell(self, memory: Any, offset: int) -> None:
        """Exchanges notifications through a doorbell in shared memory from now on; called after the handshake."""
        self._doorbell = Doorbell(memory, offset, IDLE_S)
        PEERS.add(self._socket.fileno(), self._doorbell.wake)

    def acknowledge_at(self, memory: Any, offset: int) -> None:
        """Makes `acknowledge` count in a doorbell in shared memory; called after the handshake."""
        self._acknowledgements = Doorbell(memory, offset, IDLE_S)

    def acknowledge(self) -> None:
        """Acknowledges a notification that `receive_several` has returned, if there is a doorbell for that."""
        if self._acknowledgements is not None:
            self._acknowledgements.acknowledge_aloud()

    @property
    def unacknowledged(self) -> int:
        """The number of the newest notification, if it is counted and was not acknowledged; otherwise 0."""
        return 0 if self._acknowledgements is None else self._acknowledgements.unacknowledged

    def rest(self) -> None:
        """Lets the next `receive` wait without a time limit, if there is a doorbell."""
        self._rests = True

    def _sleep(self) -> Notification | None:
        return self._receive(0)

    def _sleep_at_doorbell(self) -> Notification | None:
        if (doorbell := self._doorbell) is None:
            raise EOFError
        if doorbell.notified_without_batch:
            doorbell.notified_without_batch = False
            self._check_peer()
        if self._is_closed:
            raise EOFError
        if self.is_woken:
            return doorbell.take()
        rests, self._rests = self._rests, False
        doorbell.sleep(forever=rests)
        notification = doorbell.take()
        if notification is None:
            self._check_peer()
        return notification

    def _check_peer(self) -> None:
        """Raises EOFError if the other side has disconnected, or does not use the doorbell."""
        if self._receive(socket.MSG_DONTWAIT) is not None:
            raise EOFError

    def _receive(self, flags: int) -> Notification | None:
        try:
            data = self._socket.recv(NOTIFICATION.size, flags)
        except BlockingIOError:
            return None
        except OSError as error:
            raise EOFError from error
        if len(data) != NOTIFICATION.size:
            raise EOFError
        return tuple.__new__(Notification, NOTIFICATION.unpack(data))  # faster than `_make`, which is not a builtin

    def fileno(self) -> int:
        """Returns the socket's descriptor: readable if a notification has arrived or the other side disconnected."""
        return self._socket.fileno()

    def receive_now(self) -> Notification | None:
        """Receives a notification without waiting.

        Returns:
            The notification, or None if there is none.

        Raises:
            EOFError: The other side has disconnected.
        """
        return self._receive(socket.MSG_DONTWAIT)

    def receive_several(self) -> list[Notification]:
        """Receives notifications without waiting, by one system call.

        Raises:
            EOFError: The other side has disconnected. Notifications that it sent just before are lost.
        """
        if self._reader is None:
            self._reader = NotificationReader(self._socket)
        notifications = self._reader.read()
        if notifications is None or self._reader.has_ended:
            raise EOFError
        return [tuple.__new__(Notification, notification) for notification in notifications]

    def receive_fds(self) -> tuple[Notification, int, int | None]:
        """Waits for a notification with one or two file descriptors.

        Raises:
            EOFError: The other side has disconnected, was silent for ``IDLE_S`` seconds, or sent no descriptor.
        """
        try:
            data, fds = receive_fds(self._socket, NOTIFICATION.size, 2)
        except OSError as error:
            raise EOFError from error
        if len(data) != NOTIFICATION.size or not fds:
            for fd in fds:
                os.close(fd)
            raise EOFError
        return Notification._make(NOTIFICATION.unpack(data)), fds[0], fds[1] if len(fds) > 1 else None

    def wake(self) -> None:
        """Makes the thread in `receive` return; without a doorbell, within ``IDLE_S`` seconds."""
        self.is_woken = True
        if (doorbell := self._doorbell) is not None:
            doorbell.wake()

    def close(self) -> None:
        """Closes the connection, and wakes every thread that waits on it, on both sides."""
        self._is_closed = True
        if self._doorbell is not None:
            PEERS.remove(self._socket.fileno())
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):  # an inference callable may have closed the descriptor
            self._socket.close()
        if self._doorbell is not None:
            self._doorbell.wake()
            self._doorbell.notify()
