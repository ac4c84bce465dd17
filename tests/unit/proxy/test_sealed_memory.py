"""Shared memory keeps its size, and only such memory is mapped; a refused handshake leaves no descriptor."""

from __future__ import annotations

import mmap
import os
import pathlib
import socket
import tempfile

import psutil
import pytest

from pytriton.proxy.transport.arena import Arena, PeerArena
from pytriton.proxy.wire.notification import NOTIFICATION, NotificationKind
from pytriton.proxy.worker.listener import WorkerListener


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


@pytest.mark.parametrize(
    "kinds", [["file"], ["arena"], ["arena", "file"], ["file", "file"], ["socket"] * 3, []], ids=str
)
@pytest.mark.parametrize("size", [NOTIFICATION.size, 3])
def test_a_refused_handshake_leaves_no_descriptor(kinds, size):
    with tempfile.TemporaryDirectory(prefix="pt-") as folder:
        listener = WorkerListener(pathlib.Path(folder) / "workers")
        files = psutil.Process().num_fds()
        for _ in range(5):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
                peer.connect(str(pathlib.Path(folder) / "workers"))
                fds = _descriptors(kinds)
                hello = NOTIFICATION.pack(NotificationKind.HELLO, 12345, 0, 0)[:size]
                socket.send_fds(peer, [hello], fds) if fds else peer.send(hello)
                for fd in fds:
                    os.close(fd)
                listener.accept()
                peer.settimeout(10)
                assert peer.recv(1) == b""
        deadline = 1000
        while psutil.Process().num_fds() > files and deadline:
            deadline -= 1
        assert psutil.Process().num_fds() <= files
        listener.close()
