"""The arena's allocator: blocks in use are never handed out again, and free memory is returned."""

from __future__ import annotations

import copy
import gc
import math
import os
import pathlib
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pytriton.proxy.transport.arena import BLOCK_HEADER, Arena, ArenaError, Lease, PeerArena, default_capacity

PAGE = 4096
CAPACITY = 1 << 18

Array = np.ndarray[Any, Any]


def pattern(seed: int, size: int) -> Array:
    return ((seed + np.arange(size) * 131) % 251).astype(np.uint8)


def peer_of(arena: Arena) -> PeerArena:
    return PeerArena(os.dup(arena.fd))


def write(arena: Arena, size: int, seed: int) -> int:
    """Takes a block and fills it with the pattern."""
    offset = arena.allocate(size)
    arena.memory[offset : offset + size] = pattern(seed, size).tobytes()
    return offset


def view(lease: Lease) -> Array:
    """An array that lies in a block, as inputs do."""
    return np.ndarray((lease.nbytes,), np.uint8, cast(Any, lease))


def pages_of(arena: Arena) -> int:
    """Bytes that the arena takes from the system."""
    return os.fstat(arena.fd).st_blocks * 512


def open_descriptors() -> int:
    return len(list(pathlib.Path("/proc/self/fd").iterdir()))


def block_size(size: int) -> int:
    return max(PAGE, 1 << (size + BLOCK_HEADER - 1).bit_length())


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(CAPACITY)
    yield arena
    arena.close()


class Blocks(RuleBasedStateMachine):
    """An arena beside a list of its blocks in use."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(CAPACITY)
        self.peer = peer_of(self.arena)
        self.held: dict[int, tuple[int, int, Array]] = {}

    def blocks(self) -> list[tuple[int, int]]:
        """Where the blocks in use begin and end."""
        starts = ((offset - BLOCK_HEADER, size) for offset, (size, _, _) in self.held.items())
        return sorted((start, start + block_size(size)) for start, size in starts)

    def has_room(self, size: int) -> bool:
        size = block_size(size)
        return any(
            all(end <= start or begin >= start + size for begin, end in self.blocks())
            for start in range(0, CAPACITY - size + 1, size)
        )

    @rule(size=st.one_of(st.integers(0, 3 * PAGE), st.integers(0, CAPACITY)), seed=st.integers(0, 250))
    def allocate(self, size: int, seed: int) -> None:
        try:
            offset = write(self.arena, size, seed)
        except ArenaError:
            assert not self.has_room(size)
            return
        assert offset % BLOCK_HEADER == 0
        self.held[offset] = size, seed, view(self.peer.lease(offset, size))
        assert all(offset + size <= end for begin, end in self.blocks() if begin == offset - BLOCK_HEADER)
        blocks = self.blocks()
        assert blocks[-1][1] <= CAPACITY
        assert all(first[1] <= second[0] for first, second in zip(blocks, blocks[1:]))  # noqa: B905, RUF007

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 10**6))
    def release(self, number: int) -> None:
        del self.held[list(self.held)[number % len(self.held)]]

    @rule()
    def trim(self) -> None:
        self.arena.trim(math.inf)
        in_use = sum(end - begin for begin, end in self.blocks())
        assert pages_of(self.arena) <= in_use

    @invariant()
    def what_is_held_is_as_it_was(self) -> None:
        assert self.arena.in_use() == len(self.held)
        for size, seed, array in self.held.values():
            assert np.array_equal(array, pattern(seed, size))

    def teardown(self) -> None:
        self.held.clear()
        assert self.arena.allocate(CAPACITY - BLOCK_HEADER) == BLOCK_HEADER  # all of it: nothing was lost
        self.arena.close()


Blocks.TestCase.settings = hypothesis.settings(deadline=None, max_examples=60, stateful_step_count=40)
TestBlocks = Blocks.TestCase


def test_its_capacity_is_the_memory_of_the_machine() -> None:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    capacity = default_capacity()
    assert capacity.bit_count() == 1
    assert capacity == 1 << 36 or memory <= capacity < 2 * memory


def test_an_unused_arena_takes_no_memory() -> None:
    arena = Arena()
    assert pages_of(arena) == 0
    offset = write(arena, 10 * PAGE, 1)
    assert 10 * PAGE <= pages_of(arena) <= 16 * PAGE
    assert offset == BLOCK_HEADER
    arena.close()


def test_it_has_no_name_and_is_not_inherited(arena: Arena) -> None:
    assert str(pathlib.Path(f"/proc/self/fd/{arena.fd}").readlink()) == "/memfd:pytriton (deleted)"
    assert not os.get_inheritable(arena.fd)


def test_descriptors_are_closed_with_the_last_view() -> None:
    gc.collect()
    before = open_descriptors()
    arena = Arena(CAPACITY)
    views = [view(peer_of(arena).lease(arena.allocate(100), 100)) for _ in range(10)]
    arena.close()
    del arena
    assert open_descriptors() > before
    views.clear()
    gc.collect()
    assert open_descriptors() == before


def test_a_block_larger_than_the_arena_is_refused_by_size(arena: Arena) -> None:
    with pytest.raises(ArenaError, match=rf"results of {CAPACITY} bytes are larger .* \({CAPACITY} bytes\)"):
        arena.allocate(CAPACITY)
    assert arena.allocate(CAPACITY - BLOCK_HEADER) == BLOCK_HEADER


def test_a_full_arena_says_how_much_is_in_use(arena: Arena) -> None:
    peer = peer_of(arena)
    leases = [peer.lease(arena.allocate(CAPACITY // 4 - BLOCK_HEADER), 1) for _ in range(4)]
    with pytest.raises(ArenaError, match="4 earlier blocks are still in use"):
        arena.allocate(1)
    leases.pop()
    arena.allocate(1)


def test_the_last_freed_block_is_reused_first(arena: Arena) -> None:
    peer = peer_of(arena)
    offsets = [arena.allocate(100) for _ in range(3)]
    for offset in (offsets[0], offsets[2], offsets[1]):
        peer.lease(offset, 1)
        assert arena.allocate(100) == offset


def test_blocks_are_released_in_any_order_and_merge_again() -> None:
    arena = Arena(CAPACITY)
    peer = peer_of(arena)
    shuffle = random.Random(1)
    for size in (PAGE, 2 * PAGE, 4 * PAGE, CAPACITY // 2):
        for _ in range(5):
            leases = []
            with pytest.raises(ArenaError):
                while True:
                    leases.append(peer.lease(arena.allocate(size - BLOCK_HEADER), 1))
            assert len(leases) == CAPACITY // size
            shuffle.shuffle(leases)
            while leases:
                leases.pop()
    assert arena.in_use() == 0
    assert arena.allocate(CAPACITY - BLOCK_HEADER) == BLOCK_HEADER


def test_a_block_that_is_held_does_not_keep_others_from_being_collected(arena: Arena) -> None:
    peer = peer_of(arena)
    held = [peer.lease(write(arena, 100, seed), 100) for seed in range(20)]
    for _ in range(2000):
        peer.lease(arena.allocate(100), 100)
    assert arena.in_use() <= len(held) + 1
    assert pages_of(arena) < 64 * PAGE
    assert all(np.array_equal(lease, pattern(seed, 100)) for seed, lease in enumerate(held))


def test_trimming_returns_pages_to_the_system(arena: Arena) -> None:
    peer = peer_of(arena)
    kept = peer.lease(write(arena, 5 * PAGE, 7), 5 * PAGE)
    burst = [peer.lease(write(arena, 3 * PAGE, 8), 1) for _ in range(8)]
    assert pages_of(arena) >= 29 * PAGE
    burst.clear()
    arena.trim(math.inf)
    assert pages_of(arena) <= block_size(5 * PAGE)
    assert np.array_equal(kept, pattern(7, 5 * PAGE))


def test_recently_used_blocks_keep_their_pages(arena: Arena) -> None:
    peer = peer_of(arena)
    peer.lease(write(arena, 10 * PAGE, 1), 1)
    assert arena.in_use() == 0
    freed = time.monotonic()
    arena.trim(freed - 60)
    assert pages_of(arena) >= 10 * PAGE
    arena.trim(freed)
    assert pages_of(arena) == 0


def test_trimmed_blocks_can_be_used_again(arena: Arena) -> None:
    peer = peer_of(arena)
    for seed in range(10):
        offset = write(arena, 20 * PAGE, seed)
        lease = peer.lease(offset, 20 * PAGE)
        assert np.array_equal(lease, pattern(seed, 20 * PAGE))
        del lease
        arena.trim(math.inf)
        assert pages_of(arena) == 0


@pytest.mark.parametrize(
    "derive",
    [
        lambda array: array[3:9],
        lambda array: array[::-2],
        lambda array: array.reshape(4, -1),
        lambda array: array.reshape(4, -1).T[1:],
        lambda array: array.view(np.float32),
        lambda array: array.view(np.uint8).view(np.matrix),
        memoryview,
        lambda array: memoryview(array)[5:],
        lambda array: np.frombuffer(memoryview(array), np.int16),
        lambda array: np.broadcast_to(array, (3, array.size)),
        lambda array: iter([array[1:]]),
        lambda array: lambda: array,
    ],
)
@pytest.mark.parametrize("from_lease", [True, False], ids=["of the lease", "of an array"])
def test_any_view_keeps_the_block(arena: Arena, derive: Callable[[Array], object], from_lease: bool) -> None:
    lease = peer_of(arena).lease(write(arena, 64, 1), 64)
    derived = derive(lease if from_lease else view(lease))
    del lease
    gc.collect()
    assert arena.in_use() == 1
    del derived
    gc.collect()
    assert arena.in_use() == 0


@pytest.mark.parametrize(
    "duplicate",
    [
        lambda lease: lease.copy(),
        copy.copy,
        copy.deepcopy,
        lambda lease: pickle.loads(pickle.dumps(lease)),
        lambda lease: lease + 0,
        lambda lease: np.concatenate([lease, lease]),
        lambda lease: lease[[0, 1, 2]],
        lambda lease: lease.tobytes(),
    ],
)
def test_copies_neither_keep_nor_release_the_block(arena: Arena, duplicate: Callable[[Lease], object]) -> None:
    peer = peer_of(arena)
    lease = peer.lease(write(arena, 64, 1), 64)
    first, second = duplicate(lease), duplicate(lease)
    del first
    assert arena.in_use() == 1
    del lease
    assert arena.in_use() == 0
    again = peer.lease(arena.allocate(64), 64)
    del second
    assert arena.in_use() == 1
    del again


def test_the_last_view_may_die_in_any_thread(arena: Arena) -> None:
    peer = peer_of(arena)
    views = [view(peer.lease(write(arena, 1000, seed), 1000)) for seed in range(40)]
    wrong: list[int] = []

    def drop(mine: list[tuple[int, Array]]) -> None:
        while mine:
            seed, array = mine.pop()
            if not np.array_equal(array, pattern(seed, 1000)):
                wrong.append(seed)

    numbered = list(enumerate(views))
    threads = [threading.Thread(target=drop, args=(numbered[n::4],)) for n in range(4)]
    del views, numbered
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    del threads
    assert arena.in_use() == 0


def test_blocks_are_handed_out_while_other_threads_release(arena: Arena) -> None:
    peer = peer_of(arena)
    handed: list[tuple[int, Array]] = []
    ready = threading.Semaphore(0)
    room = threading.Semaphore(16)
    wrong: list[int] = []

    def check() -> None:
        while True:
            ready.acquire()
            seed, array = handed.pop()
            if seed < 0:
                return
            if not np.array_equal(array, pattern(seed, array.size)):
                wrong.append(seed)
            del array
            room.release()

    threads = [threading.Thread(target=check) for _ in range(3)]
    for thread in threads:
        thread.start()
    for seed in range(3000):
        room.acquire()
        size = seed * 7 % 3000
        handed.append((seed, view(peer.lease(write(arena, size, seed), size))))
        ready.release()
        if seed % 100 == 0:
            arena.trim(math.inf)
    for _ in threads:
        room.acquire()
        handed.insert(0, (-1, np.empty(0)))
        ready.release()
    for thread in threads:
        thread.join()
    assert not wrong
    assert arena.in_use() == 0


def test_views_outlive_both_sides() -> None:
    arena = Arena(CAPACITY)
    peer = peer_of(arena)
    views = [view(peer.lease(write(arena, 3000, seed), 3000)) for seed in range(5)]
    arena.close()
    del arena, peer
    gc.collect()
    assert all(np.array_equal(array, pattern(seed, 3000)) for seed, array in enumerate(views))
    del views
    gc.collect()


def test_kept_inputs_stay_as_they_are() -> None:
    arena = Arena(1 << 22)
    peer = peer_of(arena)
    kept: list[tuple[int, Array]] = []
    draw = random.Random(2)
    for seed in range(5000):
        size = draw.randrange(1, 6000)
        array = view(peer.lease(write(arena, size, seed), size))
        if seed % 50 == 0:
            kept.append((seed, array))
        if seed % 500 == 0:
            arena.trim(math.inf)
    del array
    assert arena.in_use() == len(kept) == 100
    assert all(np.array_equal(array, pattern(seed, array.size)) for seed, array in kept)
    kept.clear()
    arena.close()
