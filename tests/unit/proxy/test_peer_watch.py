"""Connections whose other side disconnects while their threads sleep."""

from __future__ import annotations

import mmap
import queue
import socket
import threading
import weakref

import pytest
from wiring import wait_until

from pytriton.proxy.transport.channel import Channel
from pytriton.proxy.transport.peer_watch import PeerWatch


@pytest.fixture
def ends():
    mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, other:
        yield mine, other


def test_a_closed_connection_is_detected_once(ends):
    mine, other = ends
    calls = queue.Queue()
    watch = PeerWatch()
    watch.add(mine.fileno(), lambda: calls.put("closed"))
    other.close()
    assert calls.get(timeout=10) == "closed"

    second, its_other = socket.socketpair()
    with second:
        watch.add(second.fileno(), lambda: calls.put("closed, too"))
        its_other.close()
        assert calls.get(timeout=10) == "closed, too"
    assert calls.empty()


def test_a_connection_is_watched_after_a_thread_could_not_be_started(ends, monkeypatch):
    def fail(_):
        raise RuntimeError("can't start new thread")

    mine, other = ends
    calls = queue.Queue()
    watch = PeerWatch()
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(threading.Thread, "start", fail)
        watch.add(mine.fileno(), lambda: calls.put("no thread"))
    watch.add(mine.fileno(), lambda: calls.put("closed"))
    other.close()
    assert calls.get(timeout=10) == "closed"


def test_a_connection_that_was_removed_is_not_watched(ends):
    mine, other = ends
    calls = queue.Queue()
    watch = PeerWatch()
    watch.add(mine.fileno(), lambda: calls.put("removed"))
    watch.remove(mine.fileno())
    other.close()
    second, its_other = socket.socketpair()
    with second:
        watch.add(second.fileno(), lambda: calls.put("watched"))
        its_other.close()
        assert calls.get(timeout=10) == "watched"


def test_a_closed_connection_is_released(ends):
    class Connection:
        def __init__(self):
            self.ended = threading.Event()

        def end(self):
            self.ended.set()

    mine, other = ends
    connection = Connection()
    ended, held = connection.ended, weakref.ref(connection)
    watch = PeerWatch()
    watch.add(mine.fileno(), connection.end)
    del connection
    other.close()
    assert ended.wait(10)
    watch.remove(mine.fileno())

    wait_until(lambda: held() is None)


@pytest.mark.parametrize("end", ["the other side goes", "this side closes"])
def test_a_resting_thread_wakes_up_when_the_connection_is_closed(ends, end):
    mine, other = ends
    channel = Channel(mine)
    channel.use_doorbell(mmap.mmap(-1, mmap.PAGESIZE), 64)
    channel.rest()
    ended = threading.Event()

    def serve():
        with pytest.raises(EOFError):
            channel.receive()
        ended.set()

    threading.Thread(target=serve, daemon=True).start()
    other.close() if end == "the other side goes" else channel.close()
    assert ended.wait(10)
    channel.close()
