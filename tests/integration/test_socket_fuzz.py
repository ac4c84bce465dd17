"""The sockets of a workspace, to which another program of the same user sends random bytes."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import stat
import struct
import sys
import threading
import time

import cloudpickle
import numpy as np
import psutil
import pytest
import zmq
from peer_codecs import encode_batch, encode_registration
from serving import Load, bind_floats, running_triton, send_floats, wait_until

from pytriton.decorators import batch
from pytriton.model_config.datatypes import CODE_BY_DTYPE
from pytriton.process import ProcessInstance
from pytriton.proxy.transport.arena import Arena
from pytriton.proxy.transport.channel import Channel
from pytriton.proxy.wire.encoding import TensorColumn, TensorLocation
from pytriton.proxy.wire.inference import BatchMessage
from pytriton.proxy.wire.notification import NOTIFICATION, PROTOCOL_VERSION, Notification, NotificationKind
from pytriton.proxy.wire.registration import RegistrationMessage, decode_admission

cloudpickle.register_pickle_by_value(sys.modules[__name__])

MODELS = ("plain", "coroutine", "process")
WORDS = (0, 1, -1, 7, 64, 4096, 1 << 20, 1 << 31, 1 << 62, -(1 << 63), (1 << 63) - 1)


@batch
def double(x):
    return [x * 2]


@batch
async def double_later(x):
    return [x * 2]


class Double:
    @batch
    def __call__(self, x):
        return [x * 2]


def bind_models(triton):
    for name, function in zip(MODELS, (double, double_later, ProcessInstance(Double)), strict=True):
        bind_floats(triton, name, function)


class Intruder:
    """Sends random messages to all sockets of a workspace, with and without a ticket."""

    def __init__(self, triton, seed):
        self._triton = triton
        self._folder = triton._session.workspace.path
        self._registry = triton._session.registry
        self._random = random.Random(seed)
        self._context = zmq.Context()
        self.admitted = 0
        self.attempts = 0

    def close(self):
        self._context.destroy(linger=0)

    def attempt(self):
        """Does one of the things that it can think of."""
        self.attempts += 1
        with contextlib.suppress(OSError, EOFError):  # the other side has closed the connection
            self._random.choice((self.send_garbage, self.send_frames, self.shake_hands, self.take_part))()

    def send_garbage(self):
        """Connects to any socket, and sends noise with any descriptors."""
        kind = self._random.choice((socket.SOCK_STREAM, socket.SOCK_SEQPACKET))
        with socket.socket(socket.AF_UNIX, kind) as peer:
            peer.settimeout(1)
            peer.connect(str(self._random.choice(self._sockets())))
            for _ in range(self._random.randrange(3)):
                self._send(peer, self._random.randbytes(self._random.choice((1, 31, 32, 33, 64, 5000))))

    def send_frames(self):
        """Sends the registry frames that are not a registration, or half of one."""
        registration = self._registration()
        frames = [b"pytriton", str(PROTOCOL_VERSION).encode(), registration]
        for _ in range(self._random.randrange(1, 4)):
            position = self._random.randrange(len(frames))
            change = self._random.randrange(4)
            if change == 0:
                frames[position] = frames[position][: self._random.randrange(len(frames[position]) + 1)]
            elif change == 1:
                frames.insert(position, self._random.randbytes(self._random.choice((0, 5, 1 << 20))))
            elif change == 2 and len(frames) > 1:
                del frames[position]
            else:
                noise = bytearray(frames[position] or b"x")
                noise[self._random.randrange(len(noise))] ^= 1 << self._random.randrange(8)
                frames[position] = bytes(noise)
        self._request(frames)

    def shake_hands(self):
        """Says hello to a listener without a ticket, with any descriptors."""
        with self._connected(self._folder / "sockets" / "workers") as peer:
            kind = self._random.choice((NotificationKind.HELLO, NotificationKind.BATCH, 99))
            words = [self._random.choice(WORDS) for _ in range(3)]
            self._send(peer, NOTIFICATION.pack(kind, *words))
            with contextlib.suppress(TimeoutError):
                peer.recv(100)

    def take_part(self):
        """Connects as a model instance with a new ticket, and sends malformed batches; reuses the ticket."""
        reply = self._request([b"pytriton", str(PROTOCOL_VERSION).encode(), self._registration()])
        if not reply or reply[0] != b"admitted":
            return
        admission = decode_admission(reply[1])
        self.admitted += 1
        arena = Arena(1 << 20)
        try:
            for _ in range(2):
                with self._connected(admission.socket) as peer:
                    offset = self._random.choice((0, 0, *WORDS))
                    hello = NOTIFICATION.pack(NotificationKind.HELLO, admission.ticket, offset, 0)
                    socket.send_fds(peer, [hello], [arena.fd])
                    with contextlib.suppress(TimeoutError):
                        _, fds, _, _ = socket.recv_fds(peer, NOTIFICATION.size, 4)
                        for fd in fds:
                            os.close(fd)
                    noise = self._random.choice((self._random.randbytes(4096), self._damaged_batch()))
                    arena.memory[64 : 64 + len(noise)] = noise
                    for _ in range(self._random.randrange(4)):
                        kind = self._random.choice((NotificationKind.BATCH, NotificationKind.BATCH, 0, 99))
                        words = [self._random.choice((*WORDS, 64, 64, 1000)) for _ in range(3)]
                        peer.send(NOTIFICATION.pack(kind, *words)[: self._random.choice((32, 32, 32, 5))])
        finally:
            arena.close()

    def _damaged_batch(self):
        tensor = TensorColumn(0, CODE_BY_DTYPE[np.dtype(np.float32)], True, [TensorLocation(8, 4, (1, 1))])
        message = bytearray(encode_batch(BatchMessage(1, [1], [tensor], [])).to_bytes())
        for _ in range(self._random.randrange(3)):
            word = self._random.choice((*WORDS, self._random.randrange(1 << 40)))
            struct.pack_into("<q", message, 8 * self._random.randrange(len(message) // 8), word)
        return bytes(message) + bytes(512)

    def _sockets(self):
        return [path for path in self._folder.rglob("*") if stat.S_ISSOCK(path.lstat().st_mode)]

    def _registration(self):
        binding = self._random.choice(list(self._registry._workers))
        return encode_registration(RegistrationMessage(binding, "plain", 1, f"plain_{self._random.randrange(3)}", "{}"))

    def _request(self, frames):
        with self._context.socket(zmq.REQ) as peer:
            peer.linger = 0
            peer.connect(self._registry.endpoint)
            peer.send_multipart(frames)
            return peer.recv_multipart() if peer.poll(1000) else None

    @contextlib.contextmanager
    def _connected(self, path):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.settimeout(0.2)
            peer.connect(str(path))
            yield peer

    def _send(self, peer, data):
        fds = [self._random.choice((self._file, self._pipe, self._memory))() for _ in range(self._random.randrange(4))]
        try:
            socket.send_fds(peer, [data], fds)
        finally:
            for fd in fds:
                os.close(fd)

    @staticmethod
    def _file():
        return os.open(os.devnull, os.O_RDONLY)

    @staticmethod
    def _pipe():
        one, other = os.pipe()
        os.close(other)
        return one

    def _memory(self):
        fd = os.memfd_create("intruder")
        os.ftruncate(fd, self._random.choice((0, 1, 4096, 1 << 20)))
        return fd


@pytest.mark.timeout(700)
@pytest.mark.parametrize("seconds", [4, pytest.param(600, marks=pytest.mark.slow)])
def test_random_bytes_on_the_sockets_neither_stop_models_nor_leak(seconds, caplog):
    caplog.set_level(logging.CRITICAL, "pytriton")  # what pytest keeps of the log would keep memory, too
    with running_triton() as triton:
        bind_models(triton)
        triton.run()
        process = psutil.Process()
        children = [each.pid for each in process.children()]
        for name in MODELS:
            assert send_floats(triton, name, [1]) == [2]
        before = process.num_fds(), threading.active_count()
        intruder = Intruder(triton, seed=7)
        over = threading.Event()
        loads = [Load(lambda number, name=name: send_floats(triton, name, [number]), over) for name in MODELS]
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                intruder.attempt()
        finally:
            over.set()
            for load in loads:
                load.join(30)
            intruder.close()

        assert intruder.attempts > 50 * seconds / 8 and intruder.admitted > 10
        for load in loads:
            assert len(load.responses) > 10 and not load.is_alive()
            assert [(number, response) for number, response in load.responses if response != [2 * number]] == []
        wait_until(lambda: process.num_fds() <= before[0] and threading.active_count() <= before[1], 20)
        assert [each.pid for each in process.children()] == children
        bind_floats(triton, "late", double)
        assert send_floats(triton, "late", [3]) == [6]


def test_a_ticket_is_valid_for_one_connection():
    with running_triton() as triton:
        bind_models(triton)
        triton.run()
        intruder = Intruder(triton, seed=1)
        binding = next(iter(triton._session.registry._workers))
        registration = encode_registration(RegistrationMessage(binding, "plain", 1, "plain_0", "{}"))
        _, admission = intruder._request([b"pytriton", str(PROTOCOL_VERSION).encode(), registration])[:2]
        ticket = decode_admission(admission)
        arena = Arena(1 << 16)
        received = []
        for _ in range(2):
            with intruder._connected(ticket.socket) as peer:
                channel = Channel(peer)
                channel.send(Notification(NotificationKind.HELLO, ticket.ticket, 0, 0), arena.fd)
                try:
                    received.append(channel.receive_fds()[0].kind)
                except EOFError:
                    received.append(None)
        arena.close()
        intruder.close()

        assert received == [NotificationKind.WELCOME, None]
        assert send_floats(triton, "plain", np.float32([1]).tolist()) == [2]
