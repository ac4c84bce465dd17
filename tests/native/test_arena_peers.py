"""Arenas of Python and C++ against each other, in one process and in two."""

from __future__ import annotations

import array
import ctypes
import fcntl
import math
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton.proxy.transport.arena import Arena, Lease, PeerArena

CAPACITY = 1 << 20
BLOCKS = 1500

# Both get the library's path and the number of a socket.
PEER = """
import ctypes, socket, struct, sys
library = ctypes.CDLL(sys.argv[1])
library.peer_new.restype = library.peer_matches.restype = ctypes.c_int64
connection = socket.socket(fileno=int(sys.argv[2]))
_, (fd,), _, _ = socket.recv_fds(connection, 1, 1)
peer = ctypes.c_void_p(library.peer_new(fd))
while data := connection.recv(24):
    offset, size, seed = (ctypes.c_int64(word) for word in struct.unpack("3q", data))
    matches = library.peer_matches(peer, offset, size, seed)
    library.peer_release(peer, offset)
    connection.send(struct.pack("q", matches))
"""
OWNER = """
import ctypes, socket, struct, sys
library = ctypes.CDLL(sys.argv[1])
library.arena_new.restype = library.arena_write.restype = library.arena_in_use.restype = ctypes.c_int64
connection = socket.socket(fileno=int(sys.argv[2]))
arena = ctypes.c_void_p(library.arena_new(ctypes.c_int64(1 << 20)))
socket.send_fds(connection, [b"x"], [library.arena_fd(arena)])
while data := connection.recv(16):
    size, seed = (ctypes.c_int64(word) for word in struct.unpack("2q", data))
    offset = library.arena_write(arena, size, seed)
    connection.send(struct.pack("2q", offset, library.arena_in_use(arena)))
"""


def pattern(seed: int, size: int) -> np.ndarray[Any, Any]:
    return ((seed + np.arange(size) * 131) % 251).astype(np.uint8)


def words(*numbers: int) -> bytes:
    return array.array("q", numbers).tobytes()


@contextmanager
def other_process(script: str, library_path: Path) -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(30)
    with ours, theirs:
        command = [sys.executable, "-c", script, str(library_path), str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        try:
            yield ours
        finally:
            ours.close()
            assert process.wait(30) == 0


@pytest.fixture
def cpp_arena(library: ctypes.CDLL) -> Iterator[int]:
    arena = library.arena_new(CAPACITY)
    yield arena
    library.arena_delete(arena)


def test_cpp_reads_what_python_wrote_and_releases_it(library: ctypes.CDLL) -> None:
    owner = Arena(CAPACITY)
    peer = library.peer_new(owner.fd)
    draw = random.Random(1)
    held: list[tuple[int, int, int]] = []
    for seed in range(BLOCKS):
        size = draw.randrange(1, 9000)
        offset = owner.allocate(size)
        owner.memory[offset : offset + size] = pattern(seed, size).tobytes()
        held.append((offset, size, seed))
        while len(held) > draw.randrange(1, 40):
            each = held.pop(draw.randrange(len(held)))
            assert library.peer_matches(peer, *each) == each[1]
            library.peer_release(peer, each[0])
        if seed % 100 == 0:
            owner.trim(math.inf)
        assert owner.in_use() == len(held)
    assert all(library.peer_matches(peer, *each) == each[1] for each in held)
    library.peer_delete(peer)
    owner.close()


def test_python_reads_what_cpp_wrote_and_releases_it(library: ctypes.CDLL, cpp_arena: int) -> None:
    peer = PeerArena(os.dup(library.arena_fd(cpp_arena)))
    draw = random.Random(2)
    held = []
    for seed in range(BLOCKS):
        size = draw.randrange(1, 9000)
        offset = library.arena_write(cpp_arena, size, seed)
        assert offset > 0
        held.append((seed, peer.lease(offset, size)))
        while len(held) > draw.randrange(1, 40):
            number, lease = held.pop(draw.randrange(len(held)))
            assert np.array_equal(lease, pattern(number, lease.size))
            del lease
        if seed % 100 == 0:
            library.arena_trim(cpp_arena)
        assert library.arena_in_use(cpp_arena) == len(held)
    assert all(np.array_equal(lease, pattern(number, lease.size)) for number, lease in held)


def test_cpp_returns_pages_to_the_system(library: ctypes.CDLL, cpp_arena: int) -> None:
    peer = PeerArena(os.dup(library.arena_fd(cpp_arena)))
    kept = peer.lease(library.arena_write(cpp_arena, 5000, 1), 5000)
    burst = [peer.lease(library.arena_write(cpp_arena, 50000, 2), 1) for _ in range(8)]
    status = os.fstat(library.arena_fd(cpp_arena))
    assert status.st_blocks * 512 >= 8 * 50000
    burst.clear()
    library.arena_trim(cpp_arena)
    assert os.fstat(library.arena_fd(cpp_arena)).st_blocks * 512 <= 8192
    assert np.array_equal(kept, pattern(1, 5000))


def test_cpp_refuses_blocks_outside_of_the_arena(library: ctypes.CDLL) -> None:
    owner = Arena(CAPACITY)
    peer = library.peer_new(owner.fd)
    most = 2**63 - 1
    for offset, size in [(0, 1), (63, 1), (-64, 1), (64, -1), (64, CAPACITY), (CAPACITY, 1), (most, most), (64, most)]:
        assert library.peer_matches(peer, offset, size, 0) == -1
    assert library.peer_matches(peer, CAPACITY, 0, 0) == 0
    library.peer_delete(peer)
    owner.close()


def test_a_cpp_peer_in_another_process_reads_and_releases(library_path: Path) -> None:
    owner = Arena(CAPACITY)
    with other_process(PEER, library_path) as connection:
        socket.send_fds(connection, [b"x"], [owner.fd])
        for seed in range(300):
            size = seed * 37 % 20000
            offset = owner.allocate(size)
            owner.memory[offset : offset + size] = pattern(seed, size).tobytes()
            assert owner.in_use() == 1
            connection.send(words(offset, size, seed))
            assert connection.recv(8) == words(size)
            assert owner.in_use() == 0
    owner.close()


def test_a_cpp_owner_in_another_process_writes_and_collects(library_path: Path) -> None:
    with other_process(OWNER, library_path) as connection:
        _, (fd,), _, _ = socket.recv_fds(connection, 1, 1)
        peer = PeerArena(fd)
        kept: list[tuple[int, Lease]] = []
        for seed in range(300):
            size = seed * 37 % 20000
            connection.send(words(size, seed))
            offset, in_use = array.array("q", connection.recv(16))
            assert in_use == len(kept) + 1
            lease = peer.lease(offset, size)
            assert np.array_equal(lease, pattern(seed, size))
            if seed % 30 == 0:
                kept.append((seed, lease))
            del lease
    # The owner has exited, and its memory still exists.
    assert all(np.array_equal(lease, pattern(seed, lease.size)) for seed, lease in kept)


@pytest.mark.parametrize("flags", [0, os.MFD_HUGETLB], ids=["may_shrink", "has_huge_pages"])
def test_memory_that_could_kill_its_reader_is_not_mapped(library: ctypes.CDLL, flags: int) -> None:
    fd = os.memfd_create("memory", os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(fd, 1 << 21)
    if flags:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    assert not library.peer_new(fd)
    os.close(fd)
