"""Blocks of shared memory are page-locked as a whole, whatever their sizes and their order."""

from __future__ import annotations

import gc
import os

import hypothesis
from gpu import library, to_gpu
from hypothesis import strategies as st

from pytriton.proxy.cuda.driver import used_device
from pytriton.proxy.transport.arena import BLOCK_HEADER, Arena, ArenaError, PeerArena
from pytriton.proxy.transport.page_locks import WORTH_LOCKING

assert used_device() is None
to_gpu(b"")
assert used_device() == 0

# Like an arena's blocks: a size, and which earlier blocks are released before.
steps = st.lists(st.tuples(st.integers(1, 150 << 20), st.sets(st.integers(0, 10))), max_size=12)


def locked(address, offset, size):
    return library.fake_cuda_locked(address + offset - BLOCK_HEADER, size + BLOCK_HEADER)


@hypothesis.settings(deadline=None, max_examples=100, database=None)
@hypothesis.given(steps)
@hypothesis.example([(WORTH_LOCKING - BLOCK_HEADER + 1, set()), (WORTH_LOCKING, {0})])
def check(steps):
    arena = Arena(1 << 30)
    peer = PeerArena(os.dup(arena.fd))
    for memory in (arena.memory, peer.memory):
        memory.lock_blocks()
    addresses = [arena.memory._address, peer.memory._address]
    blocks, leases = {}, {}
    for number, (size, released) in enumerate(steps):
        for each in released & blocks.keys():
            del blocks[each], leases[each]
        try:
            offset = arena.allocate(size)
        except ArenaError:
            break
        blocks[number], leases[number] = (offset, size), peer.lease(offset, size)
        for address in addresses:
            if size >= WORTH_LOCKING:
                assert locked(address, offset, size) == 1
            assert all(locked(address, *block) in (0, 1) for block in blocks.values())
    leases.clear()
    arena.close()
    del arena, peer, memory
    gc.collect()
    assert not any(library.fake_cuda_locked(address, 1 << 30) for address in addresses)


check()

arena = Arena(1 << 30)
assert not arena.memory.locks_pages
offset = arena.allocate(1 << 20)
assert not arena.trim(0)
arena.memory.lock_blocks()
assert arena.trim(1e20), "pages that are locked stay"
print("passed")
