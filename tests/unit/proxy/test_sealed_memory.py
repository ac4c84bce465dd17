"""Shared memory keeps its size, and only such memory is mapped; a refused handshake leaves no descriptor."""

from __future__ import annotations

import logging
import mmap
import os
import pathlib
import socket
import struct
import tempfile

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from peer_codecs import encode_batch
from wiring import Wire, wait_until

from pytriton.model_config import Tensor
from pytriton.proxy.transport.arena import BLOCK_HEADER, Arena, PeerArena
from pytriton.proxy.wire.encoding import ProtocolError, TensorColumn, TensorLocation
from pytriton.proxy.wire.inference import BatchMessage
from pytriton.proxy.wire.notification import NOTIFICATION, NotificationKind
from pytriton.proxy.worker.listener import WorkerListener
from pytriton.proxy.worker.worker import Worker


def test_an_arena_cannot_shrink():
    arena = Arena(1 << 20)
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fd, mmap.PAGESIZE)
    arena.trim(0)
    arena.close()


@pytest.mark.parametrize("is_file", [False, True], ids=["memory", "file"])
def test_memory_that_may_shrink_is_not_mapped(is_file, tmp_path):
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT) if is_file else os.memfd_create("unsealed")
    os.ftruncate(fd, mmap.PAGESIZE)
    with pytest.raises(OSError):
        PeerArena(fd)
    with pytest.raises(OSError):
        os.fstat(fd)  # it was closed


WORDS = st.integers(-(1 << 63), (1 << 63) - 1) | st.sampled_from([-1, 0, 1, 64, 65, 65_536, (1 << 63) - 1, -(1 << 63)])


@given(offset=WORDS | st.integers(0, 70_000), size=WORDS | st.integers(0, 70_000))
def test_a_block_lies_within_the_other_sides_memory_or_is_refused(offset, size):
    arena = Arena(65_536)
    peer = PeerArena(os.dup(arena.fd))
    try:
        lease = peer.lease(offset, size)
        assert peer.take(offset, size) == lease.tobytes()
    except ValueError:
        assert not (offset >= BLOCK_HEADER and 0 <= size <= 65_536 - offset)
    else:
        start = np.frombuffer(peer.memory, np.uint8).__array_interface__["data"][0]
        assert lease.__array_interface__["data"][0] == start + offset
        assert len(lease) == size and offset + size <= 65_536
    finally:
        arena.close()


@given(offset=st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_tensor_lies_within_its_batch_or_is_refused(offset):
    wire = Wire([Tensor((-1,), np.float32, "x")], [Tensor((-1,), np.float32, "y")])
    data = encode_batch(BatchMessage(1, [1], [TensorColumn(0, 11, True, [TensorLocation(offset, 4, (1, 1))])], []))
    message = data.to_bytes() + bytes(64)
    start = wire.arena.allocate(len(message))
    wire.arena.memory[start : start + len(message)] = message
    try:
        array = wire.batch_at(start, len(message)).inputs_of(0)["x"]
    except (ProtocolError, TypeError):
        assert not 0 <= offset <= 60
    else:
        assert array.tolist() == [[0.0]] and 0 <= offset <= 60
    finally:
        wire.close()


@pytest.mark.parametrize("count", [73, 1 << 40, (1 << 63) - 1])
def test_a_batch_cannot_have_more_requests_than_it_has_cancel_flags(count):
    wire = Wire([Tensor((-1,), np.float32, "x")], [Tensor((-1,), np.float32, "y")])
    message = bytearray(encode_batch(BatchMessage(1, [], [], [])).to_bytes())
    struct.pack_into("<q", message, 8 * [*struct.unpack(f"<{len(message) // 8}q", message)].index(1, 3), count)
    message += bytes(64)
    start = wire.arena.allocate(len(message))
    wire.arena.memory[start : start + len(message)] = bytes(message)
    with pytest.raises(ProtocolError, match=f"cannot have {count} requests"):
        wire.batch_at(start, len(message))
    wire.close()


def _descriptors(kinds):
    opened = []
    for kind in kinds:
        if kind == "arena":
            arena = Arena(1 << 16)
            opened.append(os.dup(arena.fd))
            arena.close()
        elif kind == "socket":
            one, other = socket.socketpair()
            other.close()
            opened.append(one.detach())
        else:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    return opened


def _say_hello(listener, path, hello, kinds):
    """Connects to a listener, which refuses that, and returns once it has disconnected."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.connect(str(path))
        fds = _descriptors(kinds)
        socket.send_fds(peer, [hello], fds) if fds else peer.send(hello)
        for fd in fds:
            os.close(fd)
        listener.accept()
        peer.settimeout(10)
        assert peer.recv(1) == b""


@pytest.mark.parametrize(
    "kinds", [["file"], ["arena"], ["arena", "file"], ["file", "file"], ["socket"] * 3, []], ids=str
)
@pytest.mark.parametrize("size", [NOTIFICATION.size, 3])
def test_a_refused_handshake_leaves_no_descriptor(kinds, size):
    with tempfile.TemporaryDirectory(prefix="pt-") as folder:
        path = pathlib.Path(folder) / "workers"
        listener = WorkerListener(path)
        files = psutil.Process().num_fds()
        for _ in range(5):
            _say_hello(listener, path, NOTIFICATION.pack(NotificationKind.HELLO, 12345, 0, 0)[:size], kinds)
        wait_until(lambda: psutil.Process().num_fds() <= files)
        listener.close()


@pytest.mark.parametrize("kinds", [["arena", "file"], ["file", "file"], ["file", "socket"], ["file"]], ids=str)
def test_a_handshake_with_a_ticket_and_wrong_descriptors_leaves_none(kinds, caplog):
    caplog.set_level(logging.CRITICAL)  # it would keep the errors, whose tracebacks refer to the connection
    wire = Wire([Tensor((-1,), np.float32, "x")], [Tensor((-1,), np.float32, "y")])
    worker = Worker(lambda requests: requests, wire.signature)
    with tempfile.TemporaryDirectory(prefix="pt-") as folder:
        path = pathlib.Path(folder) / "workers"
        listener = WorkerListener(path)
        files = psutil.Process().num_fds()
        for _ in range(5):
            ticket = listener.issue_ticket(worker).ticket
            _say_hello(listener, path, NOTIFICATION.pack(NotificationKind.HELLO, ticket, 0, 0), kinds)
        wait_until(lambda: psutil.Process().num_fds() <= files)
        listener.close()
    worker.close(0)
    wire.close()
