// A buddy allocator in anonymous shared memory. Counterpart of `transport/arena.py`.
//
// Each side of a connection owns one arena and is the only one to allocate in it; the other side maps it, reads, and
// releases. An arena is a sparse memfd: its capacity is address space, and only pages that were written take memory.
// Block sizes are powers of two, so no sequence of sizes can fragment it permanently.
//
// A block starts with a header of kBlockHeader bytes. Its first word is 1 while the block is in use; the reader stores
// 0 there to release it, which any thread may do at any time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/file_descriptor.h"

namespace pytriton {

constexpr int64_t kBlockHeader = 64;

class ArenaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Fixes the minimum size of shared memory: reading beyond the end of a file that has shrunk would kill the reader. The
// other side accepts only sealed memory. Returns whether it succeeded.
bool Seal(int fd);

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

// The usable bytes of a block, and their offset in the arena.
struct Block {
  char* data = nullptr;
  int64_t offset = 0;
  int64_t number = 0;  // the number of the allocation
};

// The arena in which this side allocates.
class Arena {
 public:
  using Clock = std::chrono::steady_clock;

  // The machine's memory, but at most 64 GiB and an eighth of the process's address space limit.
  static int64_t DefaultCapacity();

  explicit Arena(int64_t capacity = DefaultCapacity());

  int fd() const { return file_.get(); }
  int64_t capacity() const { return mapping_.size(); }
  // The bytes of memory that it occupies: pages that were written and not returned to the system.
  int64_t MemoryBytes() const;

  // Throws ArenaError if the arena is full.
  Block Allocate(int64_t size);

  // Frees a block that was never announced to the other side.
  void Discard(const Block& block);

  // Whether the other side still holds the block: it was neither released nor reallocated.
  bool IsInUse(const Block& block);

  // From now on, no pages are returned to the system: the other side page-locks them for GPUs.
  void KeepPages() { keeps_pages_ = true; }

  // Returns the pages of blocks that have been free since `before` to the system.
  void Trim(Clock::time_point before);

  // Number of blocks that the other side has not released yet.
  size_t in_use();

  // Number of allocations so far.
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
  std::vector<std::vector<FreeBlock>>
      free_;                    // by order; the most recently freed block is reused first, since it may still be cached
  std::deque<UsedBlock> used_;  // the oldest first
  int64_t allocations_ = 0;
  std::atomic<bool> keeps_pages_{false};
};

// The arena in which the other side allocates.
class PeerArena {
 public:
  PeerArena() = default;
  // Maps the whole arena of `file`.
  explicit PeerArena(FileDescriptor file);

  // Returns `size` bytes of a block, after a check of its bounds and of its alignment. Throws ArenaError.
  const char* At(int64_t offset, int64_t size) const;
  // Releases the block at `offset`.
  void Release(int64_t offset) const;
  // The bytes of memory that it occupies.
  int64_t MemoryBytes() const;

 private:
  FileDescriptor file_;
  Mapping mapping_;
};

// A block of the other side, which is released when the object is destroyed.
class PeerBlock {
 public:
  // Throws ArenaError unless the block lies in the arena, which outlives the object.
  PeerBlock(const PeerArena* arena, int64_t offset, int64_t size)
      : arena_(arena), data_(arena->At(offset, size)), offset_(offset), size_(size) {}
  ~PeerBlock() { Release(); }
  PeerBlock(PeerBlock&& other) noexcept
      : arena_(std::exchange(other.arena_, nullptr)), data_(other.data_), offset_(other.offset_), size_(other.size_) {}
  PeerBlock& operator=(PeerBlock&&) = delete;

  const char* data() const { return data_; }
  int64_t size() const { return size_; }

  // Releases it earlier.
  void Release() {
    if (arena_ != nullptr) std::exchange(arena_, nullptr)->Release(offset_);
  }

 private:
  const PeerArena* arena_;  // null once it is released or moved from
  const char* data_;
  int64_t offset_;
  int64_t size_;
};

}  // namespace pytriton
