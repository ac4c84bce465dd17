"""The worker's end of a service channel: a socket, and the shared memory of both sides.

Its other end is ``backend/services/service_channel.h``.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import weakref
from collections.abc import Sequence
from typing import cast

import numpy as np

from pytriton.exceptions import PyTritonBadParameterError, PyTritonInferenceError, PyTritonInvalidOperationError
from pytriton.model_config.datatypes import DTYPE_BY_CODE
from pytriton.proxy.cuda.driver import CudaError
from pytriton.proxy.services.messages import InferenceReply, ServiceTensor
from pytriton.proxy.tensors.gpu_tensor import peer_tensor
from pytriton.proxy.transport.adaptive_spin import AdaptiveSpin
from pytriton.proxy.transport.arena import PeerArena, SharedArena
from pytriton.proxy.transport.doorbell import DOORBELL_SIZE, Doorbell, PollFlag, WakeFlag, has_futex
from pytriton.proxy.transport.forks import FORKS
from pytriton.proxy.transport.notification_reader import NotificationReader
from pytriton.proxy.transport.notification_sender import NotificationSender
from pytriton.proxy.transport.unix_socket import receive_fds
from pytriton.proxy.types import Array
from pytriton.proxy.wire.encoding import DEVICE_LOCATION_SIZE
from pytriton.proxy.wire.error_code import ErrorCode
from pytriton.proxy.wire.notification import NOTIFICATION, PROTOCOL_VERSION
from pytriton.proxy.wire.service import ON_DEVICE, ServiceNotification, read_reply
from pytriton.utils.forks import close_in_forks

GONE = "the server is gone, or has unloaded the model"
"""The error of a call without a server."""

_HANDSHAKE_S = 5.0
_REPLY_FDS = 3  # two that come with it, and the one of a mapping
_NAP_S = 0.25  # after which it checks that the server is still there
_NOTHING = np.empty(0, np.uint8)


class ServiceChannel:
    """Sends and receives notifications. Any number of threads may send, one at a time may receive.

    Args:
        connected: The socket.
    """

    def __init__(self, connected: socket.socket) -> None:
        """Creates a channel; `open` opens it."""
        self._socket = connected
        close_in_forks(connected)
        # Not by close(): a thread may still be waiting on its descriptor.
        weakref.finalize(self, connected.close).atexit = False
        self._reader = NotificationReader(connected)
        self._sender = NotificationSender(connected)
        self._spin = AdaptiveSpin(for_reply=True)
        self._loop_spin = AdaptiveSpin(for_reply=True)  # for event loops
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)
        self._forks = FORKS.count
        self._opening = threading.Lock()
        self._peer: PeerArena | None = None
        self._doorbell: Doorbell | None = None  # the receiving thread sleeps there
        self._wake_flag: WakeFlag | None = None
        self._poll_flag: PollFlag | None = None
        self.arena: SharedArena | None = None
        """The memory for the data of calls, once the channel is open."""

    def fileno(self) -> int:
        """Returns the descriptor of the socket, which is readable when there are notifications."""
        return self._socket.fileno()

    def open(self) -> SharedArena:
        """Opens the channel with the first call, and returns the memory for data.

        Raises:
            PyTritonInvalidOperationError: The server has exited, or this is a fork of the process that had the channel.
        """
        if self._forks != FORKS.count:
            raise PyTritonInvalidOperationError(
                "this process is a fork of the one that serves the model, and cannot send requests to the server: send "
                "them there, before or after the fork, or use a client over HTTP or gRPC (pytriton.client) here"
            )
        if self.arena is not None:
            return self.arena
        with self._opening:
            if self.arena is None:
                self.arena = self._handshake()
            return self.arena

    def _handshake(self) -> SharedArena:
        arena = SharedArena()
        self._socket.settimeout(_HANDSHAKE_S)
        # The server opens a channel once: a reply whose descriptors find no room would close it for good.
        with contextlib.ExitStack() as reserved:
            try:
                for _ in range(_REPLY_FDS):
                    reserved.callback(os.close, os.dup(arena.fd))
            except OSError:  # too many open files; a later call tries again
                arena.close()
                raise
        try:
            socket.send_fds(
                self._socket, [NOTIFICATION.pack(ServiceNotification.OPEN, 0, PROTOCOL_VERSION, 0)], [arena.fd]
            )
            data, fds = receive_fds(self._socket, NOTIFICATION.size, 2)
        except OSError as error:
            arena.close()
            raise PyTritonInvalidOperationError(GONE) from error
        if (
            len(data) != NOTIFICATION.size
            or len(fds) != 2
            or NOTIFICATION.unpack(data)[0] != ServiceNotification.OPENED
        ):
            arena.close()
            for fd in fds:
                os.close(fd)
            raise PyTritonInvalidOperationError(GONE)
        self._socket.setblocking(True)
        self._peer = PeerArena(fds[0])
        self._wake_flag = WakeFlag(fds[1])
        self._sender.wake = self._wake_flag.wake
        words = NOTIFICATION.unpack(data)[2]
        self._poll_flag = PollFlag(self._peer.memory, words + DOORBELL_SIZE)
        if has_futex():
            self._doorbell = Doorbell(self._peer.memory, words, _NAP_S)
        return arena

    def send(self, messages: Sequence[bytes], last: bytes | None = None) -> None:
        """Sends encoded notifications, followed by another one.

        Raises:
            OSError: The server has exited.
        """
        if messages:
            self._sender.send_several(messages)
        if last is not None:
            self._sender.send(last)
        if self._wake_flag is not None and self._poll_flag is not None and not self._poll_flag.show():
            self._wake_flag.wake()

    def receive(self) -> list[tuple[int, int, int, int]] | None:
        """Returns the notifications that have arrived; None if the server has exited."""
        return self._reader.read()

    def acknowledge(self) -> None:
        """Acknowledges a notification."""
        if self._doorbell is not None:
            self._doorbell.acknowledge()

    def wait(self, left_ms: float | None) -> bool:
        """Waits for a notification, up to a time limit. Returns whether one may have arrived."""
        doorbell = self._doorbell
        if doorbell is None or (left_ms is not None and left_ms < _NAP_S * 1000):
            return bool(self._spin.wait(lambda: self._poll.poll(0) or None, lambda: self._poll.poll(left_ms) or None))

        def nap() -> object:
            doorbell.sleep()
            return doorbell.has_notification() or self._poll.poll(0) or None  # the latter if the server has exited

        return bool(self._spin.wait(lambda: doorbell.has_notification() or None, nap, linger=doorbell.linger))

    @property
    def can_spin(self) -> bool:
        """Whether a thread can spin for notifications without the interpreter."""
        return self._doorbell is not None and self._doorbell.linger is not None

    def spin_in_loop(self, begin_ns: int) -> bool:
        """Spins for a notification in the thread of an event loop, if `can_spin`. Returns whether one has arrived.

        Args:
            begin_ns: When the wait began, on the clock of ``time.monotonic_ns()``.
        """
        doorbell = self._doorbell
        assert doorbell is not None and doorbell.linger is not None
        return bool(self._loop_spin.spin(lambda: doorbell.has_notification() or None, begin_ns, doorbell.linger))

    def learn_in_loop(self, begin_ns: int) -> None:
        """Records how long an event loop has waited, to adapt its spinning."""
        self._loop_spin.learn(begin_ns)

    def read(self, offset: int, size: int) -> InferenceReply:
        """Reads a reply in the server's memory; its tensors stay valid for as long as they are referenced.

        Raises:
            ProtocolError: It is malformed.
        """
        peer = self._peer
        assert peer is not None
        if size == 0:
            no_room = "there is no room for the response in shared memory"
            return InferenceReply(error=PyTritonInferenceError(no_room, ErrorCode.UNAVAILABLE))
        message = read_reply(peer.take(offset, size))
        tensors = {}
        for name, datatype, position, length, shape in message.outputs:
            if datatype & ON_DEVICE:
                datatype &= ~ON_DEVICE
                lease = peer.lease(position, DEVICE_LOCATION_SIZE)
                try:
                    tensor = cast("Array", peer_tensor(lease, 0, shape, DTYPE_BY_CODE[datatype]))
                except (CudaError, PyTritonBadParameterError) as error:
                    reason = f"output {name!r} cannot be read: {error}"
                    return InferenceReply(final=message.final, error=PyTritonInferenceError(reason, ErrorCode.INTERNAL))
                tensors[name] = ServiceTensor(datatype, shape, tensor)
                continue
            tensors[name] = ServiceTensor(datatype, shape, peer.lease(position, length) if position >= 0 else _NOTHING)
        return InferenceReply(
            tensors,
            message.final,
            message.model,
            message.version,
            message.request_id,
            dict(message.parameters),
            message.error,
        )

    def close(self) -> None:
        """Closes the channel, and wakes the waiting thread; does nothing in a fork, which shares memory with it."""
        if self._forks != FORKS.count:
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a reading thread
        if self._doorbell is not None:
            self._doorbell.wake()
        if self.arena is not None:
            self.arena.close()
