"""The worker's end of a service channel: threads and event loops that wait at the same time, and a server that goes."""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import threading
import time

import psutil
import pytest
from wiring import BackendsDoorbell

from pytriton.exceptions import PyTritonInvalidOperationError
from pytriton.proxy.services.dispatcher import Switchboard
from pytriton.proxy.services.pending_call import Waiter
from pytriton.proxy.tensors.layout import Layout
from pytriton.proxy.transport.arena import Arena, PeerArena
from pytriton.proxy.transport.doorbell import DOORBELL_SIZE
from pytriton.proxy.wire.encoding import MessageWriter
from pytriton.proxy.wire.notification import BELL, PROTOCOL_VERSION
from pytriton.proxy.wire.service import ServiceBell

PATIENCE_S = 20.0


class Server:
    """The other end."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(PATIENCE_S)
        self.board = Switchboard(theirs)
        self._arena = Arena(1 << 20)
        self._doorbell = BackendsDoorbell(self._arena)
        page = os.memfd_create("bed")
        os.truncate(page, mmap.PAGESIZE)
        self._page = page
        self.bed = mmap.mmap(page, mmap.PAGESIZE)
        opening = threading.Thread(target=self._open)
        opening.start()
        self.board._open()
        opening.join()

    def _open(self) -> None:
        data, (fd,), _, _ = socket.recv_fds(self._socket, BELL.size, 1)
        assert BELL.unpack(data) == (ServiceBell.OPEN, 0, PROTOCOL_VERSION, 0)
        self.peer = PeerArena(fd)
        opened = BELL.pack(ServiceBell.OPENED, 0, self._doorbell.offset, DOORBELL_SIZE)
        socket.send_fds(self._socket, [opened], [self._arena.fd, self._page])
        os.close(self._page)

    def ask(self, loop: asyncio.AbstractEventLoop | None = None) -> Waiter:
        waiter = self.board.ask(ServiceBell.METRIC, MessageWriter().to_bytes(), Layout(), loop=loop)
        kind, number, offset, size = BELL.unpack(self._socket.recv(BELL.size))
        assert (kind, number) == (ServiceBell.METRIC, waiter.number)
        self.peer.lease(offset, size)  # and given back
        return waiter

    def answer(self, waiter: Waiter) -> None:
        self._socket.send(BELL.pack(ServiceBell.DONE, waiter.number, 10 * waiter.number, 0))
        self._doorbell.ring()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def server() -> Server:
    return Server()


class Waiting(threading.Thread):
    """A thread that waits for a reply."""

    def __init__(self, server: Server, waiter: Waiter, timeout_s: float = PATIENCE_S) -> None:
        super().__init__(daemon=True)
        self._server, self._waiter, self._timeout_s = server, waiter, timeout_s
        self.result: object = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._server.board.wait(self._waiter, time.monotonic() + self._timeout_s)
        except PyTritonInvalidOperationError as error:
            self.result = error

    def finish(self) -> object:
        self.join(PATIENCE_S)
        assert not self.is_alive()
        return self.result


def wait_until(condition) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def waiting(server: Server, count: int) -> tuple[list[Waiter], list[Waiting]]:
    """Threads that wait: the first reads, and the others stand in line."""
    waiters = [server.ask() for _ in range(count)]
    threads = []
    for number, waiter in enumerate(waiters):
        threads.append(Waiting(server, waiter))
        wait_until(lambda number=number: server.board._is_read and len(server.board._queue) == number)
    return waiters, threads


def test_a_reply_reaches_whoever_waits(server: Server) -> None:
    waiter = server.ask()
    server.answer(waiter)
    assert server.board.wait(waiter, None) == 10


def test_nothing_comes_in_time(server: Server) -> None:
    assert server.board.wait(server.ask(), time.monotonic() + 0.01) is None


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [2, 0, 1, 3]], ids=str)
def test_threads_that_wait_read_for_each_other(server: Server, order: list[int]) -> None:
    waiters, threads = waiting(server, 4)
    for number in order:
        server.answer(waiters[number])
        assert threads[number].finish() == 10 * waiters[number].number


@pytest.mark.parametrize("others", range(2, 5))
def test_a_thread_that_has_its_reply_passes_the_reading_on(server: Server, others: int) -> None:
    """It may have been called up to read just when its own reply came."""
    for _ in range(30):
        waiters, threads = waiting(server, 1 + others)
        for number in (1, 0):  # the next in line first, then the one that reads
            server.answer(waiters[number])
        for thread in threads[:2]:
            thread.finish()
        for number in range(2, 1 + others):
            server.answer(waiters[number])
            assert threads[number].finish() == 10 * waiters[number].number


def test_a_thread_that_gives_up_passes_the_reading_on(server: Server) -> None:
    first = Waiting(server, server.ask(), timeout_s=0.1)
    wait_until(lambda: server.board._is_read)
    waiter = server.ask()
    second = Waiting(server, waiter)
    assert first.finish() is None
    server.answer(waiter)
    assert second.finish() == 10 * waiter.number


def test_a_loop_reads_where_no_thread_does(server: Server) -> None:
    async def ask() -> list[object]:
        loop = asyncio.get_running_loop()
        waiters = [server.ask(loop) for _ in range(3)]
        for waiter in reversed(waiters):
            server.answer(waiter)
        return [await server.board.wait_async(waiter, time.monotonic() + PATIENCE_S) for waiter in waiters]

    assert asyncio.run(ask()) == [10, 20, 30]
    assert asyncio.run(ask()) == [40, 50, 60]


def test_a_thread_reads_for_a_loop_and_a_loop_for_a_thread(server: Server) -> None:
    async def ask(waiter: Waiter) -> list[object]:
        mine = server.ask(asyncio.get_running_loop())
        server.answer(mine)
        server.answer(waiter)
        return [await server.board.wait_async(mine, time.monotonic() + PATIENCE_S)]

    for _ in range(30):
        waiter = server.ask()
        thread = Waiting(server, waiter)
        assert asyncio.run(ask(waiter)) == [10 * (waiter.number + 1)]
        assert thread.finish() == 10 * waiter.number


def test_whoever_waits_is_told_that_the_server_is_gone(server: Server) -> None:
    _, threads = waiting(server, 3)
    server.close()
    for thread in threads:
        assert "the server is gone" in str(thread.finish())
    with pytest.raises(PyTritonInvalidOperationError, match="the server is gone"):
        server.board.ask(ServiceBell.METRIC, MessageWriter().to_bytes(), Layout())


def test_a_loop_that_waits_is_told_that_the_server_is_gone(server: Server) -> None:
    async def ask() -> None:
        waiter = server.ask(asyncio.get_running_loop())
        server.close()
        await server.board.wait_async(waiter, time.monotonic() + PATIENCE_S)

    with pytest.raises(PyTritonInvalidOperationError, match="the server is gone"):
        asyncio.run(ask())


def test_closing_wakes_whoever_waits_and_gives_files_back(server: Server) -> None:
    _, threads = waiting(server, 3)
    before = psutil.Process().num_fds()
    server.board.close()
    server.board.close()
    for thread in threads:
        assert "the server is gone" in str(thread.finish())
    assert psutil.Process().num_fds() < before


def test_what_is_dropped_is_thrown_away_when_it_comes(server: Server) -> None:
    dropped, waiter = server.ask(), server.ask()
    server.board.drop(dropped)
    server.answer(dropped)
    server.answer(waiter)
    assert server.board.wait(waiter, time.monotonic() + PATIENCE_S) == 10 * waiter.number
    assert server.board._waiters == {}


def test_tidying_takes_what_came_for_nobody(server: Server) -> None:
    dropped = server.ask()
    server.board.drop(dropped)
    server.answer(dropped)
    server.board.tidy(time.monotonic())
    assert server.board._waiters == {}
    assert server.board.in_use() == 0


def test_a_reply_ends_the_sleep_of_whoever_reads(server: Server) -> None:
    (waiter,), (thread,) = waiting(server, 1)
    time.sleep(0.05)  # it sleeps by now; if not, the test passes all the same
    begin = time.monotonic()
    server.answer(waiter)
    assert thread.finish() == 10 * waiter.number
    assert time.monotonic() - begin < 0.2  # before it would have woken up by itself


def test_a_server_that_sleeps_is_woken_by_a_question_and_one_that_is_awake_is_left_alone(server: Server) -> None:
    server.ask()
    assert server.bed[0] == 0
    server.bed[0] = 1
    server.ask()
    assert server.bed[0] == 0
