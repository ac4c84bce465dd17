// Shared memory without a name, handed out in blocks. Twin of `arena.py`.
//
// Each side of a connection owns one arena, in which it alone allocates; the other side maps it, reads, and releases.
// An arena is a sparse memfd: its capacity is address space, and pages are taken only where something was written.
// Blocks are powers of two (buddies), so no history of sizes can fragment it for good.
//
// A block starts with a header of kBlockHeader bytes whose first word is 1 while the block is in use. Whoever read the
// block stores 0 there: releasing costs one store, whenever and in whatever thread it happens.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "base/file_descriptor.h"

namespace pytriton {

constexpr int64_t kBlockHeader = 64;

class ArenaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A shared mapping of a whole arena.
class Mapping {
 public:
  Mapping() = default;
  Mapping(int fd, int64_t size);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  char* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  char* data_ = nullptr;
  int64_t size_ = 0;
};

// The bytes of a block that its user may write, and where they lie in the arena.
struct Block {
  char* data = nullptr;
  int64_t offset = 0;
  int64_t number = 0;  // of the allocation
};

// The arena that this side allocates in.
class Arena {
 public:
  using Clock = std::chrono::steady_clock;

  // As much address space as the machine has memory, 64 GiB or an eighth of the process's limit at most.
  static int64_t DefaultCapacity();

  explicit Arena(int64_t capacity = DefaultCapacity());

  int fd() const { return file_.get(); }
  int64_t capacity() const { return mapping_.size(); }

  // Throws ArenaError when `size` bytes are not to be had.
  Block Allocate(int64_t size);

  // Takes back a block that the other side was never told of.
  void Discard(const Block& block);

  // Whether the other side still has the block: it has not released it, and its memory was not allocated anew.
  bool IsInUse(const Block& block);

  // Gives the pages of blocks that have been free since `before` back to the system.
  void Trim(Clock::time_point before);

  // Blocks that the other side has not released yet.
  size_t in_use();

  // How often a block was taken.
  int64_t allocations();

 private:
  struct FreeBlock {
    int64_t offset;
    Clock::time_point since;
    bool dirty;  // has pages
  };
  struct UsedBlock {
    int64_t offset;
    int order;
    int64_t number;
  };

  bool TakeFree(int order, FreeBlock* block);
  bool Released(const UsedBlock& block) const;
  void Collect(size_t limit);
  void Merge();

  FileDescriptor file_;
  Mapping mapping_;
  std::mutex mutex_;
  std::vector<std::vector<FreeBlock>> free_;  // by order; the block freed last is used first, while it is in the cache
  std::deque<UsedBlock> used_;                // the oldest first
  int64_t allocations_ = 0;
};

// The arena that the other side allocates in.
class PeerArena {
 public:
  PeerArena() = default;
  // Maps the arena behind `file` as large as it is.
  explicit PeerArena(FileDescriptor file);

  // `size` bytes of a block, checked to lie inside. Throws ArenaError.
  const char* At(int64_t offset, int64_t size) const;
  // Gives the block that starts at `offset` back to its owner.
  void Release(int64_t offset) const;

 private:
  Mapping mapping_;
};

}  // namespace pytriton
