"""The dispatcher of a service channel: threads and event loops that wait together, and a server that disconnects."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import gc
import mmap
import os
import signal
import socket
import threading
import time
import weakref

import psutil
import pytest
from wiring import BackendsDoorbell

from pytriton.exceptions import PyTritonInvalidOperationError
from pytriton.proxy.services.dispatcher import ReplyDispatcher
from pytriton.proxy.services.pending_call import PendingCall
from pytriton.proxy.tensors.layout import Layout
from pytriton.proxy.transport.arena import Arena, PeerArena
from pytriton.proxy.transport.doorbell import DOORBELL_SIZE
from pytriton.proxy.wire.encoding import MessageWriter
from pytriton.proxy.wire.notification import NOTIFICATION, PROTOCOL_VERSION
from pytriton.proxy.wire.service import ServiceNotification

DEADLINE_S = 20.0


class Server:
    """The other end."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(DEADLINE_S)
        self.dispatcher = ReplyDispatcher(theirs)
        self._arena = Arena(1 << 20)
        self._doorbell = BackendsDoorbell(self._arena)
        page = os.memfd_create("wake_flag", os.MFD_ALLOW_SEALING)
        os.truncate(page, mmap.PAGESIZE)
        fcntl.fcntl(page, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self._page = page
        self.wake_flag = mmap.mmap(page, mmap.PAGESIZE)
        opening = threading.Thread(target=self._open)
        opening.start()
        self.dispatcher._channel.open()
        opening.join()

    def _open(self) -> None:
        data, (fd,), _, _ = socket.recv_fds(self._socket, NOTIFICATION.size, 1)
        assert NOTIFICATION.unpack(data) == (ServiceNotification.OPEN, 0, PROTOCOL_VERSION, 0)
        self.peer = PeerArena(fd)
        opened = NOTIFICATION.pack(ServiceNotification.OPENED, 0, self._doorbell.offset, DOORBELL_SIZE)
        socket.send_fds(self._socket, [opened], [self._arena.fd, self._page])
        os.close(self._page)

    def submit(self, loop: asyncio.AbstractEventLoop | None = None) -> PendingCall:
        pending = self.dispatcher.submit(ServiceNotification.METRIC, MessageWriter().to_bytes(), Layout(), loop=loop)
        kind, number, offset, size = self.receive()
        assert (kind, number) == (ServiceNotification.METRIC, pending.number)
        self.peer.lease(offset, size)  # and given back
        return pending

    def receive(self) -> tuple[int, int, int, int]:
        return NOTIFICATION.unpack(self._socket.recv(NOTIFICATION.size))

    def response(self, pending: PendingCall) -> None:
        self._socket.send(NOTIFICATION.pack(ServiceNotification.DONE, pending.number, 10 * pending.number, 0))
        self._doorbell.notify()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def server() -> Server:
    return Server()


class Waiting(threading.Thread):
    """A thread that waits for a reply."""

    def __init__(self, server: Server, pending: PendingCall, timeout_s: float = DEADLINE_S) -> None:
        super().__init__(daemon=True)
        self._server, self._waiter, self._timeout_s = server, pending, timeout_s
        self.result: object = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._server.dispatcher.wait(self._waiter, time.monotonic() + self._timeout_s)
        except PyTritonInvalidOperationError as error:
            self.result = error

    def finish(self) -> object:
        self.join(DEADLINE_S)
        assert not self.is_alive()
        return self.result


def wait_until(condition) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def waiting(server: Server, count: int) -> tuple[list[PendingCall], list[Waiting]]:
    """Threads that wait: the first reads, and the others stand in line."""
    pending_calls = [server.submit() for _ in range(count)]
    threads = []
    for number, pending in enumerate(pending_calls):
        threads.append(Waiting(server, pending))
        wait_until(lambda number=number: server.dispatcher._is_read and len(server.dispatcher._queue) == number)
    return pending_calls, threads


def test_a_reply_reaches_the_waiting_thread(server: Server) -> None:
    pending = server.submit()
    server.response(pending)
    assert server.dispatcher.wait(pending, None) == 10


def test_a_wait_may_time_out(server: Server) -> None:
    assert server.dispatcher.wait(server.submit(), time.monotonic() + 0.01) is None


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [2, 0, 1, 3]], ids=str)
def test_threads_that_wait_read_for_each_other(server: Server, order: list[int]) -> None:
    pending_calls, threads = waiting(server, 4)
    for number in order:
        server.response(pending_calls[number])
        assert threads[number].finish() == 10 * pending_calls[number].number


def test_threads_that_wait_read_for_each_other_after_interrupts(server: Server) -> None:
    """Interrupted calls must not be called up to read."""
    reading = server.submit()
    first = Waiting(server, reading)
    wait_until(lambda: server.dispatcher._is_read)
    for _ in range(3):
        interrupted = server.submit()
        main_thread = threading.main_thread().ident
        assert main_thread is not None

        def interrupt(pending: PendingCall = interrupted, thread: int = main_thread) -> None:
            wait_until(lambda: pending in server.dispatcher._queue)
            signal.pthread_kill(thread, signal.SIGINT)

        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            server.dispatcher.wait(interrupted, None)
    last = server.submit()
    second = Waiting(server, last)
    wait_until(lambda: last in server.dispatcher._queue)
    server.response(reading)
    assert first.finish() == 10 * reading.number
    server.response(last)
    assert second.finish() == 10 * last.number


@pytest.mark.parametrize("others", range(2, 5))
def test_a_thread_that_has_its_reply_hands_over_the_reading(server: Server, others: int) -> None:
    """It may have been called up to read just when its own reply came."""
    for _ in range(30):
        pending_calls, threads = waiting(server, 1 + others)
        for number in (1, 0):  # the next in line first, then the one that reads
            server.response(pending_calls[number])
        for thread in threads[:2]:
            thread.finish()
        for number in range(2, 1 + others):
            server.response(pending_calls[number])
            assert threads[number].finish() == 10 * pending_calls[number].number


def test_a_thread_that_times_out_hands_over_the_reading(server: Server) -> None:
    first = Waiting(server, server.submit(), timeout_s=0.1)
    wait_until(lambda: server.dispatcher._is_read)
    pending = server.submit()
    second = Waiting(server, pending)
    assert first.finish() is None
    server.response(pending)
    assert second.finish() == 10 * pending.number


def test_a_loop_reads_if_no_thread_does(server: Server) -> None:
    async def submit() -> list[object]:
        loop = asyncio.get_running_loop()
        pending_calls = [server.submit(loop) for _ in range(3)]
        for pending in reversed(pending_calls):
            server.response(pending)
        return [await server.dispatcher.wait_async(pending, time.monotonic() + DEADLINE_S) for pending in pending_calls]

    assert asyncio.run(submit()) == [10, 20, 30]
    assert asyncio.run(submit()) == [40, 50, 60]


def test_calls_of_many_tasks_are_sent_together_before_they_can_be_cancelled(server: Server) -> None:
    count = 2_000  # more than a socket holds
    os.set_blocking(server.dispatcher._channel.fileno(), False)  # as uvloop does

    async def call_all() -> None:
        loop = asyncio.get_running_loop()
        message = MessageWriter().to_bytes()
        calls = [
            server.dispatcher.submit(ServiceNotification.METRIC, message, Layout(), loop=loop) for _ in range(count)
        ]
        server.dispatcher.cancel(calls[-1])
        calls += [server.dispatcher.submit(ServiceNotification.METRIC, message, Layout(), loop=loop)]
        await asyncio.sleep(0)

    calling = threading.Thread(target=asyncio.run, args=(call_all(),))
    calling.start()
    received = [server.receive()[:2] for _ in range(count + 2)]
    calling.join()
    calls = [(ServiceNotification.METRIC, number) for number in range(1, count + 2)]
    assert received == [*calls[:count], (ServiceNotification.CANCEL, count), calls[count]]


def test_a_dispatcher_is_closed_with_its_last_user(server: Server) -> None:
    """It has files, which must not wait for the garbage collector."""
    dispatcher = weakref.ref(server.dispatcher)
    gc.disable()
    try:
        del server.dispatcher
        assert dispatcher() is None
    finally:
        gc.enable()


def test_calls_of_a_closed_loop_do_not_delay_those_of_another(server: Server) -> None:
    message = MessageWriter().to_bytes()

    def call(loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(5):
            server.dispatcher.submit(ServiceNotification.METRIC, message, Layout(), loop=loop)

    closed, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    call(closed)
    closed.close()
    call(other)
    other.run_until_complete(asyncio.sleep(0))
    other.close()
    assert {server.receive()[1] for _ in range(10)} == set(range(1, 11))


def test_calls_of_tasks_fail_if_they_can_no_longer_be_sent(server: Server) -> None:
    async def call_all() -> list[object]:
        loop = asyncio.get_running_loop()
        message = MessageWriter().to_bytes()
        calls = [server.dispatcher.submit(ServiceNotification.METRIC, message, Layout(), loop=loop) for _ in range(9)]
        server.close()
        return await asyncio.gather(
            *(server.dispatcher.wait_async(call, None) for call in calls), return_exceptions=True
        )

    assert [type(result) for result in asyncio.run(call_all())] == [PyTritonInvalidOperationError] * 9


def test_a_thread_reads_for_a_loop_and_a_loop_for_a_thread(server: Server) -> None:
    async def submit(pending: PendingCall) -> list[object]:
        mine = server.submit(asyncio.get_running_loop())
        server.response(mine)
        server.response(pending)
        return [await server.dispatcher.wait_async(mine, time.monotonic() + DEADLINE_S)]

    for _ in range(30):
        pending = server.submit()
        thread = Waiting(server, pending)
        assert asyncio.run(submit(pending)) == [10 * (pending.number + 1)]
        assert thread.finish() == 10 * pending.number


def test_waiting_threads_get_an_error_when_the_server_disconnects(server: Server) -> None:
    _, threads = waiting(server, 3)
    server.close()
    for thread in threads:
        assert "the server is gone" in str(thread.finish())
    with pytest.raises(PyTritonInvalidOperationError, match="the server is gone"):
        server.dispatcher.submit(ServiceNotification.METRIC, MessageWriter().to_bytes(), Layout())


def test_waiting_tasks_get_an_error_when_the_server_disconnects(server: Server) -> None:
    async def submit() -> None:
        pending = server.submit(asyncio.get_running_loop())
        server.close()
        await server.dispatcher.wait_async(pending, time.monotonic() + DEADLINE_S)

    with pytest.raises(PyTritonInvalidOperationError, match="the server is gone"):
        asyncio.run(submit())


def test_closing_wakes_waiting_threads_and_closes_files(server: Server) -> None:
    _, threads = waiting(server, 3)
    before = psutil.Process().num_fds()
    server.dispatcher.close()
    server.dispatcher.close()
    for thread in threads:
        assert "the server is gone" in str(thread.finish())
    assert psutil.Process().num_fds() < before


def test_the_reply_to_a_cancelled_call_is_discarded(server: Server) -> None:
    dropped, pending = server.submit(), server.submit()
    server.dispatcher.cancel(dropped)
    server.response(dropped)
    server.response(pending)
    assert server.dispatcher.wait(pending, time.monotonic() + DEADLINE_S) == 10 * pending.number
    assert server.dispatcher._pending == {}


def test_trimming_discards_replies_that_no_call_waits_for(server: Server) -> None:
    dropped = server.submit()
    server.dispatcher.cancel(dropped)
    server.response(dropped)
    server.dispatcher.trim(time.monotonic())
    assert server.dispatcher._pending == {}
    assert server.dispatcher.in_use() == 0


def test_a_reply_wakes_the_thread_that_reads(server: Server) -> None:
    (pending,), (thread,) = waiting(server, 1)
    time.sleep(0.05)  # it sleeps by now; if not, the test passes all the same
    begin = time.monotonic()
    server.response(pending)
    assert thread.finish() == 10 * pending.number
    assert time.monotonic() - begin < 0.2  # before it would have woken up by itself


def test_a_call_wakes_only_a_sleeping_server(server: Server) -> None:
    server.submit()
    assert server.wake_flag[0] == 0
    server.wake_flag[0] = 1
    server.submit()
    assert server.wake_flag[0] == 0


def test_a_channel_is_not_opened_without_descriptors_for_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    dispatcher = ReplyDispatcher(theirs)
    files = psutil.Process().num_fds()
    dup, copies = os.dup, []

    def dup_once(fd: int) -> int:
        if copies:
            raise OSError(errno.EMFILE, "Too many open files")
        copies.append(fd)
        return dup(fd)

    monkeypatch.setattr(os, "dup", dup_once)
    with pytest.raises(OSError, match="Too many open files"):
        dispatcher.submit(ServiceNotification.METRIC, MessageWriter().to_bytes(), Layout())

    gc.collect()
    assert psutil.Process().num_fds() <= files
    with pytest.raises(BlockingIOError):  # so it can be opened later
        ours.recv(NOTIFICATION.size, socket.MSG_DONTWAIT)
    dispatcher.close()
    ours.close()
