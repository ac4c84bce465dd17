"""Reading and sending notifications."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from pytriton.proxy.transport.notification_reader import NotificationReader
from pytriton.proxy.transport.notification_sender import NotificationSender
from pytriton.proxy.wire.notification import NOTIFICATION


@pytest.fixture
def ends():
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        yield one, other


def test_all_notifications_are_read_in_order(ends):
    reader = NotificationReader(ends[0])
    assert reader.read() == []
    sent = [(number, -number, 1 << 40, 0) for number in range(100)]
    for notification in sent:
        NotificationSender(ends[1]).send(NOTIFICATION.pack(*notification))
    assert reader.read() + reader.read() == sent
    assert reader.read() == []


@pytest.mark.parametrize("count", [0, 1, 64, 150])
def test_several_notifications_are_sent_in_order(ends, count):
    sent = [(number, -number, 1 << 40, 0) for number in range(count)]
    NotificationSender(ends[1]).send_several([NOTIFICATION.pack(*notification) for notification in sent])
    reader, read = NotificationReader(ends[0]), []
    while several := reader.read():
        read += several
    assert read == sent


def test_reading_ends_when_the_other_side_disconnects(ends):
    reader = NotificationReader(ends[0])
    NotificationSender(ends[1]).send(NOTIFICATION.pack(1, 2, 3, 4))
    ends[1].close()
    assert reader.read() == [(1, 2, 3, 4)]
    assert reader.read() is None
    with pytest.raises(OSError):
        NotificationSender(ends[0]).send(b"x")
    with pytest.raises(OSError):
        NotificationSender(ends[0]).send_several([NOTIFICATION.pack(1, 2, 3, 4)])


def test_sending_ends_when_the_socket_is_closed_while_there_is_no_room(ends):
    sender = NotificationSender(ends[1])
    sender.wake = ends[1].close
    with pytest.raises(OSError):
        for number in range(100_000):
            sender.send(NOTIFICATION.pack(number, 0, 0, 0))


def test_a_packet_of_another_size_ends_the_connection(ends):
    NotificationSender(ends[1]).send(b"x")
    assert NotificationReader(ends[0]).read() is None


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("is_blocking", [True, False])
def test_sending_waits_for_room(ends, several, is_blocking):
    """Also if an event loop has made the file non-blocking, which the socket does not notice."""
    os.set_blocking(ends[1].fileno(), is_blocking)
    count = 5_000  # more than a socket holds
    messages = [NOTIFICATION.pack(number, 0, 0, 0) for number in range(count)]
    woken = threading.Event()
    sender = NotificationSender(ends[1])
    sender.wake = woken.set

    def send_all():
        for message in [] if several else messages:
            sender.send(message)
        sender.send_several(messages if several else [])

    thread = threading.Thread(target=send_all)
    thread.start()
    assert woken.wait(20)
    read = [ends[0].recv(NOTIFICATION.size) for _ in range(count)]
    thread.join()
    assert read == messages
