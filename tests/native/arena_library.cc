// The C++ half of the arena, for Python to call.
#include <fcntl.h>

#include <cstdint>

#include "transport/arena.h"

using pytriton::Arena;
using pytriton::ArenaError;
using pytriton::Block;
using pytriton::FileDescriptor;
using pytriton::PeerArena;

namespace {

// The twin of `pattern` in test_arena.py.
char PatternAt(int64_t seed, int64_t index) { return static_cast<char>((seed + index * 131) % 251); }

}  // namespace

extern "C" {

Arena* arena_new(int64_t capacity) { return new Arena(capacity); }
void arena_delete(Arena* arena) { delete arena; }
int arena_fd(const Arena* arena) { return arena->fd(); }
int64_t arena_in_use(Arena* arena) { return static_cast<int64_t>(arena->in_use()); }
void arena_trim(Arena* arena) { arena->Trim(Arena::Clock::time_point::max()); }

// Takes a block and fills it with the pattern. Returns its offset; -1 when there is no room.
int64_t arena_write(Arena* arena, int64_t size, int64_t seed) {
  try {
    const Block block = arena->Allocate(size);
    for (int64_t i = 0; i < size; ++i) block.data[i] = PatternAt(seed, i);
    return block.offset;
  } catch (const ArenaError&) {
    return -1;
  }
}

// Maps the arena behind `fd`, which stays the caller's; null if it is refused.
PeerArena* peer_new(int fd) {
  try {
    return new PeerArena(FileDescriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0)));
  } catch (const ArenaError&) {
    return nullptr;
  }
}
void peer_delete(PeerArena* peer) { delete peer; }
void peer_release(const PeerArena* peer, int64_t offset) { peer->Release(offset); }

// How many bytes of the block at `offset` hold the pattern before the first that does not; -1 when it lies outside.
int64_t peer_matches(const PeerArena* peer, int64_t offset, int64_t size, int64_t seed) {
  try {
    const char* data = peer->At(offset, size);
    int64_t i = 0;
    while (i < size && data[i] == PatternAt(seed, i)) ++i;
    return i;
  } catch (const ArenaError&) {
    return -1;
  }
}
}
