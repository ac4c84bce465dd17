"""Reading and sending notifications."""

from __future__ import annotations

import socket

import pytest

from pytriton.proxy.transport.notification_reader import NotificationReader
from pytriton.proxy.transport.socket_send import send
from pytriton.proxy.wire.notification import NOTIFICATION


@pytest.fixture
def ends():
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        yield one, other


def test_all_that_have_come_in_their_order(ends):
    reader = NotificationReader(ends[0])
    assert reader.read() == []
    sent = [(number, -number, 1 << 40, 0) for number in range(100)]
    for notification in sent:
        send(ends[1], NOTIFICATION.pack(*notification))
    assert reader.read() + reader.read() == sent
    assert reader.read() == []


def test_the_other_side_has_gone(ends):
    reader = NotificationReader(ends[0])
    send(ends[1], NOTIFICATION.pack(1, 2, 3, 4))
    ends[1].close()
    assert reader.read() == [(1, 2, 3, 4)]
    assert reader.read() is None
    with pytest.raises(OSError):
        send(ends[0], b"x")


def test_something_else_is_the_end(ends):
    send(ends[1], b"x")
    assert NotificationReader(ends[0]).read() is None


def test_sending_waits_for_room(ends):
    message = NOTIFICATION.pack(1, 2, 3, 4)
    ends[1].setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            send(ends[1], message)
