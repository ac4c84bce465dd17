"""The leader/follower dispatcher of a service channel: one waiting thread reads the replies for all.

There is no dedicated thread. The first thread that waits becomes the leader and reads for all others, the followers;
once it has its own reply, it promotes one of them. Event loops read while no thread does.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import socket
import threading
import time
from typing import TYPE_CHECKING

from pytriton.exceptions import PyTritonInvalidOperationError
from pytriton.proxy.services.messages import InferenceReply
from pytriton.proxy.services.pending_call import PendingCall
from pytriton.proxy.services.service_channel import GONE, ServiceChannel
from pytriton.proxy.telemetry.propagation import RequestSpan
from pytriton.proxy.tensors.layout import Layout
from pytriton.proxy.transport.device_arena import DeviceArena
from pytriton.proxy.wire.encoding import ProtocolError
from pytriton.proxy.wire.notification import NOTIFICATION
from pytriton.proxy.wire.service import ServiceNotification

if TYPE_CHECKING:
    import asyncio

LOGGER = logging.getLogger(__name__)

_LINGER_S = 0.5  # for which a loop keeps reading
_FEW = 3  # calls in flight, above which an event loop's calls are sent together


class ReplyDispatcher:
    """Sends calls over a service channel, and distributes the replies.

    Args:
        connected: The socket.
    """

    def __init__(self, connected: socket.socket) -> None:
        """Creates a dispatcher; the first call opens the channel."""
        self._channel = ServiceChannel(connected)
        self._lock = threading.Lock()  # guards all below
        self._last = 0
        self._held: list[bytes] = []  # notifications of tasks, to send together
        self._sending_loop: asyncio.AbstractEventLoop | None = None  # the loop that sends them
        self._pending: dict[int, PendingCall] = {}
        self._traced: dict[int, RequestSpan] = {}  # calls whose activities are awaited, even after the final reply
        self._queue: collections.deque[PendingCall] = collections.deque()  # followers
        self._loops: dict[asyncio.AbstractEventLoop, int] = {}  # and the number of calls that wait in each
        self._is_read = False
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the channel is known to be closed."""
        return self._closed

    def devices(self) -> DeviceArena:
        """Returns the memory of GPUs for inputs of calls.

        Raises:
            PyTritonInvalidOperationError: The server has exited.
        """
        return self._channel.open().devices

    def submit(
        self,
        kind: ServiceNotification,
        head: bytes,
        layout: Layout,
        *,
        replies: bool = True,
        loop: asyncio.AbstractEventLoop | None = None,
        span: RequestSpan | None = None,
    ) -> PendingCall:
        """Sends a call to the server.

        Args:
            kind: The kind of its notification.
            head: Its message.
            layout: Its data.
            replies: Whether the server replies to it.
            loop: The running event loop, if the caller waits for replies in it.
            span: The call's span, if it is traced.

        Raises:
            PyTritonInvalidOperationError: The server has exited, or this is a fork of the process that had the channel.
            ArenaError: There is no room for the data.
        """
        arena = self._channel.open()
        offset, size = layout.write(head, arena)
        with self._lock:
            self._last += 1
            pending = PendingCall(self._last, loop)
            if self._closed:
                raise PyTritonInvalidOperationError(GONE)
            message = NOTIFICATION.pack(kind, pending.number if replies else 0, offset, size)
            if replies:
                self._pending[pending.number] = pending
                if span is not None:
                    self._traced[pending.number] = pending.span = span
                if loop is not None:
                    self._enter(loop)
                    if len(self._pending) > _FEW:
                        self._hold(message, loop)
                        return pending
        self._send(message)
        return pending

    def wait(self, pending: PendingCall, deadline: float | None) -> InferenceReply | int | None:
        """Waits for a reply in this thread.

        Args:
            pending: The call, as returned by `submit`.
            deadline: The deadline, on the clock of ``time.monotonic()``.

        Returns:
            The reply, or the result of a command for a model or a metric; None if none came in time.

        Raises:
            PyTritonInvalidOperationError: The server has exited.
        """
        try:
            while True:
                with self._lock:
                    reply, is_gone = self._taken(pending)
                    if reply is not None or is_gone:
                        break
                    leads = not self._is_read
                    if leads:
                        self._is_read = True
                    else:
                        pending.signal = threading.Event()
                        self._queue.append(pending)
                in_time = self._lead(pending, deadline) if leads else self._follow(pending, deadline)
                if not in_time:
                    with self._lock:
                        reply, is_gone = self._taken(pending)
                    break
        finally:  # even after Ctrl-C
            self._promote_follower()
        if reply is None and is_gone:
            raise PyTritonInvalidOperationError(GONE)
        return reply

    async def wait_async(self, pending: PendingCall, deadline: float | None) -> InferenceReply | int | None:
        """Waits for a reply like `wait`, in the event loop of the caller."""
        loop = pending.loop
        assert loop is not None
        begin = time.monotonic_ns()
        is_alone = len(self._pending) == 1
        if is_alone:
            self._spin_in_loop(pending, begin)
        while True:
            left_s = None if deadline is None else deadline - time.monotonic()
            with self._lock:
                reply, is_gone = self._taken(pending)
                if reply is not None or is_gone:
                    break
                if left_s is not None and left_s <= 0:
                    return None
                pending.future = loop.create_future()
            # Far cheaper than asyncio.wait_for. A timer may fire early by the resolution of the loop's clock.
            timer = None if left_s is None else loop.call_later(left_s, pending.wake)
            try:
                await pending.future
            finally:
                pending.future = None
                if timer is not None:
                    timer.cancel()
        if is_alone:
            self._channel.learn_in_loop(begin)
        if reply is None:
            raise PyTritonInvalidOperationError(GONE)
        return reply

    def cancel(self, pending: PendingCall) -> None:
        """Cancels a call; its replies are discarded."""
        with self._lock:
            pending.replies.clear()
            if pending.cancelled or pending.number not in self._pending:
                return
            pending.cancelled = True
        self.request_cancellation(pending)

    def request_cancellation(self, pending: PendingCall) -> None:
        """Requests that the server cancel a call, whose replies are still awaited up to the final one."""
        with contextlib.suppress(PyTritonInvalidOperationError):  # then nothing is in flight any more
            self._send(NOTIFICATION.pack(ServiceNotification.CANCEL, pending.number, 0, 0))

    def trim(self, before: float) -> bool:
        """Discards abandoned replies, and returns memory to the system if it has been free since ``before``.

        Returns:
            Whether there is nothing left to do until the next call.
        """
        arena = self._channel.arena
        if arena is None:
            return True
        self._read_arrived(until_empty=True)
        return arena.trim(before) and not self._pending

    def in_use(self) -> int:
        """The number of blocks that the server has not released yet."""
        arena = self._channel.arena
        return 0 if arena is None else arena.in_use()

    def close(self) -> None:
        """Ends the channel; waiting calls fail."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            pending_calls = list(self._pending.values())
            self._pending.clear()
            for pending in pending_calls:
                self._leave(pending)
        self._channel.close()
        for pending in pending_calls:
            pending.wake()

    def _hold(self, message: bytes, loop: asyncio.AbstractEventLoop) -> None:
        """Schedules a notification to be sent once all ready tasks have run; called with the lock held.

        A single system call then sends those of all tasks, and the sleeping server is woken only once.
        """
        self._held.append(message)
        if len(self._held) == 1 or loop is not self._sending_loop:  # an earlier one may be closed
            self._sending_loop = loop
            loop.call_soon(self._send_held)

    def _send_held(self) -> None:
        with contextlib.suppress(PyTritonInvalidOperationError):  # the waiting tasks get this error
            self._send()

    def _send(self, message: bytes | None = None) -> None:
        """Sends the held notifications, followed by another one."""
        with self._lock:
            messages, self._held = self._held, []
        try:
            self._channel.send(messages, message)
        except OSError as error:
            self.close()
            raise PyTritonInvalidOperationError(GONE) from error

    def _taken(self, pending: PendingCall) -> tuple[InferenceReply | int | None, bool]:
        """Returns a reply that has arrived, and whether there will be none; called with the lock held."""
        if pending.replies:
            return pending.replies.popleft(), False
        return None, pending.number not in self._pending or pending.cancelled

    def _lead(self, pending: PendingCall, deadline: float | None) -> bool:
        """Reads for all waiters, until there is a reply to this call. Returns whether that was in time."""
        try:
            while not pending.replies and pending.number in self._pending and not pending.cancelled:
                left_ms = None if deadline is None else (deadline - time.monotonic()) * 1000
                if left_ms is not None and left_ms <= 0:
                    return False
                if self._channel.wait(left_ms) and self._receive() is False:
                    self.close()
            return True
        finally:
            self._release_leadership()

    def _spin_in_loop(self, pending: PendingCall, begin: int) -> None:
        """Spins for the reply to the only call in flight, in the thread of an event loop."""
        if not self._channel.can_spin:
            return
        with self._lock:
            if self._is_read:
                return
            self._is_read = True
        try:
            while not pending.replies and self._channel.spin_in_loop(begin):
                if self._receive() is False:
                    self.close()
                    return
        finally:
            self._release_leadership()

    def _follow(self, pending: PendingCall, deadline: float | None) -> bool:
        """Waits for a reply to this call, or for promotion to leader. Returns whether that was in time."""
        assert pending.signal is not None
        try:
            return pending.signal.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        finally:
            with self._lock:
                pending.signal = None
                if pending in self._queue:  # it was not promoted
                    self._queue.remove(pending)

    def _release_leadership(self) -> None:
        with self._lock:
            self._is_read = False
            if self._queue:
                self._queue.popleft().wake()

    def _promote_follower(self) -> None:
        """Promotes a follower if there is no leader."""
        with self._lock:
            if not self._is_read and self._queue:
                self._queue.popleft().wake()

    def _read_arrived(self, *, until_empty: bool = False) -> None:
        """Reads replies that have arrived, unless a thread does. An event loop calls it again if there are more."""
        with self._lock:
            if self._is_read or self._closed:
                return
            self._is_read = True
        try:
            while (is_there := self._receive()) and until_empty:
                pass
            if is_there is False:
                self.close()
        finally:
            self._release_leadership()

    def _receive(self) -> bool | None:
        """Receives notifications. Returns whether the server is still connected; None without a notification."""
        notifications = self._channel.receive()
        if not notifications:
            return None if notifications is not None else False
        return all(self._take(*notification) for notification in notifications)

    def _take(self, kind: int, number: int, offset: int, size: int) -> bool:
        """Handles one notification. Returns whether it is of a kind that the server sends."""
        self._channel.acknowledge()
        reply: InferenceReply | int = offset
        if kind == ServiceNotification.REPLY:
            try:
                reply = self._channel.read(offset, size)
            except (ProtocolError, TypeError, ValueError):
                LOGGER.exception("The server sent a malformed reply to a worker.")
                return False
        elif kind == ServiceNotification.ACTIVITY:
            self._note_activity(number, offset, size)
            return True
        is_final = type(reply) is int or reply.final  # type: ignore[union-attr]
        with self._lock:
            pending = self._pending.get(number)
            if pending is None:
                return True
            if is_final:
                del self._pending[number]
                if pending.span is not None and not pending.span.is_followed:
                    self._traced.pop(number, None)
                if pending.loop is not None:
                    self._leave(pending)
            if not pending.cancelled:
                pending.replies.append(reply)
        if pending.signal is not None or pending.future is not None:
            pending.wake()
        return True

    def _note_activity(self, number: int, activity: int, time_ns: int) -> None:
        with self._lock:
            span = self._traced.get(number)
        if span is not None and not span.note_activity(activity, time_ns):
            with self._lock:
                self._traced.pop(number, None)

    def _enter(self, loop: asyncio.AbstractEventLoop) -> None:
        """Makes a loop read while a task waits in it; called with the lock held, in the loop's thread."""
        count = self._loops.get(loop)
        self._loops[loop] = (count or 0) + 1
        if count is None:
            for closed in [each for each in self._loops if each.is_closed()]:  # closed before it could leave
                del self._loops[closed]
            loop.add_reader(self._channel.fileno(), self._read_arrived)
            loop.call_later(_LINGER_S, self._leave_when_idle, loop)

    def _leave(self, pending: PendingCall) -> None:
        """Undoes `_enter` for one call; called with the lock held.

        The loop keeps reading for a moment, since the next call may follow at once.
        """
        loop = pending.loop
        if loop in self._loops:
            self._loops[loop] -= 1

    def _leave_when_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            count = self._loops.get(loop)
            if count is None:
                return
            if count == 0:
                del self._loops[loop]
                loop.remove_reader(self._channel.fileno())
                return
        loop.call_later(_LINGER_S, self._leave_when_idle, loop)
