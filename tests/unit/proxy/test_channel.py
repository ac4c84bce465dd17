"""The channel between a worker and a model instance."""

from __future__ import annotations

import os
import socket
import threading

import pytest
from forked import fork
from wiring import channels

from pytriton.proxy.services.service_channel import ServiceChannel
from pytriton.proxy.transport.channel import Channel
from pytriton.proxy.wire.notification import Notification, NotificationKind


class TestChannel:
    def test_notifications_arrive_in_order(self):
        ours, theirs = channels()
        notifications = [Notification(NotificationKind.BATCH, number, -number, 2**62) for number in range(5)]
        for notification in notifications:
            ours.send(notification)

        assert [theirs.receive() for _ in notifications] == notifications
        ours.close()
        theirs.close()

    def test_a_notification_may_bring_a_file_descriptor(self, tmp_path):
        ours, theirs = channels()
        with (tmp_path / "file").open("w+b") as file:
            file.write(b"content")
            file.flush()
            ours.send(Notification(NotificationKind.HELLO, 1, 2, 3), file.fileno())
        notification, fd, _ = theirs.receive_fds()

        assert notification == (NotificationKind.HELLO, 1, 2, 3)
        assert os.pread(fd, 10, 0) == b"content"
        assert not os.get_inheritable(fd)
        os.close(fd)
        ours.close()
        theirs.close()

    def test_receiving_raises_eof_when_the_other_side_closes(self):
        ours, theirs = channels()
        theirs.close()

        with pytest.raises(EOFError):
            ours.receive()
        with pytest.raises(OSError, match="pipe"):
            ours.send(Notification(NotificationKind.BATCH, 1, 0, 0))
        ours.close()

    def test_closing_wakes_a_waiting_thread(self):
        ours, theirs = channels()
        ended = threading.Event()

        def wait():
            with pytest.raises(EOFError):
                while ours.receive() is None:
                    pass
            ended.set()

        thread = threading.Thread(target=wait)
        thread.start()
        ours.close()

        assert ended.wait(0.9), "before its timeout"
        thread.join()
        theirs.close()

    def test_receiving_returns_none_after_its_time_limit(self):
        ours, theirs = channels()

        assert ours.receive() is None
        ours.close()
        theirs.close()

    def test_a_malformed_notification_closes_the_connection(self):
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel = Channel(right)
        left.send(b"short")
        with pytest.raises(EOFError):
            channel.receive()
        left.send(b"x" * 32)
        with pytest.raises(EOFError):
            channel.receive_fds()
        left.close()
        channel.close()


@pytest.mark.parametrize("kind", [Channel, ServiceChannel])
def test_a_process_that_has_forked_another_ends_its_connections(kind):
    """As if it were killed: the sockets are closed, and not shut down."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(20)
    channel = kind(theirs)
    stays, goes = os.pipe()

    def run():
        os.close(goes)
        os.read(stays, 1)
        channel.close()

    child = fork(run)
    theirs.close()
    assert ours.recv(1) == b""
    os.close(goes)
    assert os.waitpid(child, 0)[1] == 0
    os.close(stays)
    ours.close()
