// Owners write blocks, peers check and release them in any order, and a maintenance thread trims, all at once.
//
// `arena_stress BLOCKS [--release-early]`: each owner writes BLOCKS blocks. With the option, peers release a block
// before they look at it, which must not go unnoticed.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "transport/arena.h"

namespace {

using pytriton::Arena;
using pytriton::ArenaError;
using pytriton::Block;
using pytriton::FileDescriptor;
using pytriton::kBlockHeader;
using pytriton::PeerArena;

constexpr int kOwners = 3;
constexpr int kPeers = 4;
constexpr int64_t kCapacity = int64_t{1} << 21;  // small enough that owners run into its end
constexpr size_t kMostHeld = 12;                 // blocks, per peer
constexpr int64_t kReleasesPerTrim = 64;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "arena_stress: %s\n", what);
  std::_Exit(1);
}

// A block that an owner filled with its pattern.
struct Filled {
  int64_t offset;
  int64_t size;
  uint64_t seed;
};

uint64_t PatternAt(uint64_t seed, int64_t word) { return seed + static_cast<uint64_t>(word) * 0x9e3779b97f4a7c15U; }

void Fill(char* data, int64_t size, uint64_t seed) {
  for (int64_t i = 0; i < size; i += 8) {
    const uint64_t word = PatternAt(seed, i);
    std::memcpy(data + i, &word, std::min<int64_t>(8, size - i));
  }
}

bool Matches(const char* data, int64_t size, uint64_t seed) {
  for (int64_t i = 0; i < size; i += 8) {
    const uint64_t word = PatternAt(seed, i);
    if (std::memcmp(data + i, &word, std::min<int64_t>(8, size - i)) != 0) return false;
  }
  return true;
}

class Stress {
 public:
  Stress(int64_t blocks, bool release_early)
      : blocks_(blocks), release_early_(release_early), arena_(kCapacity), peer_(FileDescriptor(dup(arena_.fd()))) {}

  void Run() {
    std::vector<std::thread> owners;
    std::vector<std::thread> peers;
    for (int i = 0; i < kOwners; ++i) owners.emplace_back([this, i] { Own(i); });
    for (int i = 0; i < kPeers; ++i) peers.emplace_back([this, i] { Peer(i); });
    std::thread maintenance([this] { Trim(); });
    for (std::thread& client_process : owners) client_process.join();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    for (std::thread& peer : peers) peer.join();
    maintenance.join();
    if (arena_.in_use() != 0) Fail("blocks that were released are still in use");
    if (mismatches_ != 0) Fail("blocks did not hold their data");
    arena_.Allocate(kCapacity - kBlockHeader);  // the whole arena: nothing was lost on the way
    std::printf("%lld blocks, %lld times full, %lld trims\n", static_cast<long long>(released_),
                static_cast<long long>(full_), static_cast<long long>(trims_));
  }

 private:
  void Own(int number) {
    std::mt19937_64 random(number);
    for (int64_t i = 0; i < blocks_; ++i) {
      const int64_t size = static_cast<int64_t>(random() % (int64_t{1} << (random() % 17)));
      const Block block = Allocate(size);
      if (random() % 16 == 0) {
        arena_.Discard(block);
        continue;
      }
      const uint64_t seed = random();
      Fill(block.data, size, seed);
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        filled_.push_back({block.offset, size, seed});
      }
      changed_.notify_all();
    }
  }

  Block Allocate(int64_t size) {
    for (;;) {
      int64_t released;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        released = released_;
      }
      try {
        return arena_.Allocate(size);
      } catch (const ArenaError&) {
        ++full_;
      }
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return released_ != released; });
    }
  }

  void Peer(int number) {
    std::mt19937_64 random(1000 + number);
    std::vector<Filled> held;
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      if (filled_.empty()) {
        // Whoever waits holds nothing: the owners may be waiting for it.
        lock.unlock();
        while (!held.empty()) ReleaseOne(&held, &random);
        lock.lock();
        changed_.wait(lock, [this] { return done_ || !filled_.empty(); });
        if (filled_.empty()) return;
      }
      const Filled block = filled_.front();
      filled_.pop_front();
      lock.unlock();
      if (release_early_) peer_.Release(block.offset);
      if (!Matches(peer_.At(block.offset, block.size), block.size, block.seed)) {
        if (!release_early_) Fail("a block does not hold its data");
        ++mismatches_;
      }
      held.push_back(block);
      while (held.size() > random() % kMostHeld) ReleaseOne(&held, &random);
    }
  }

  void ReleaseOne(std::vector<Filled>* held, std::mt19937_64* random) {
    std::swap(held->back(), (*held)[(*random)() % held->size()]);
    const Filled block = held->back();
    held->pop_back();
    if (!release_early_) {
      if (!Matches(peer_.At(block.offset, block.size), block.size, block.seed)) Fail("a held block was written over");
      peer_.Release(block.offset);
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++released_;
    }
    changed_.notify_all();
  }

  void Trim() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!done_) {
      const int64_t next = released_ + kReleasesPerTrim;
      changed_.wait(lock, [&] { return done_ || released_ >= next; });
      lock.unlock();
      arena_.Trim(Arena::Clock::time_point::max());
      ++trims_;
      lock.lock();
    }
  }

  const int64_t blocks_;
  const bool release_early_;
  Arena arena_;
  const PeerArena peer_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Filled> filled_;
  int64_t released_ = 0;
  bool done_ = false;
  std::atomic<int64_t> full_{0};
  std::atomic<int64_t> mismatches_{0};
  int64_t trims_ = 0;  // of the maintenance thread alone, until it is joined
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) Fail("usage: arena_stress BLOCKS [--release-early]");
  Stress(std::atoll(argv[1]), argc > 2 && std::strcmp(argv[2], "--release-early") == 0).Run();
  return 0;
}
