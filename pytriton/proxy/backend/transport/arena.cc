#include "transport/arena.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "base/system_error.h"

namespace pytriton {

namespace {

constexpr int kMinOrder = 12;  // a page
constexpr int64_t kMaxCapacity = int64_t{1} << 36;
constexpr size_t kCollectPerAllocation = 8;

std::atomic<int64_t>& State(char* block) {
  static_assert(sizeof(std::atomic<int64_t>) == 8 && std::atomic<int64_t>::is_always_lock_free);
  return *reinterpret_cast<std::atomic<int64_t>*>(block);
}

bool IsSealed(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

// Whether a file consists of huge pages: once the system has no more of them, reading it would kill the reader.
bool HasHugePages(int fd) {
  struct statfs status = {};
  return fstatfs(fd, &status) == 0 && status.f_type == HUGETLBFS_MAGIC;
}

int OrderOf(int64_t size) {
  int order = kMinOrder;
  while ((int64_t{1} << order) < size) ++order;
  return order;
}

int64_t PagesOf(int fd) {
  struct stat status = {};
  return fd >= 0 && fstat(fd, &status) == 0 ? int64_t{512} * status.st_blocks : 0;
}

}  // namespace

bool Seal(int fd) { return fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) == 0; }

Mapping::Mapping(int fd, int64_t size) : size_(size) {
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (data == MAP_FAILED) throw ArenaError(SystemError("cannot map shared memory"));
  data_ = static_cast<char*>(data);
  madvise(data, size, MADV_DONTDUMP);  // otherwise, the kernel writes gigabytes for minutes when the server crashes
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, size_);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

int64_t Arena::DefaultCapacity() {
  int64_t memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    memory = std::min(memory, static_cast<int64_t>(limit.rlim_cur / 16));
  }
  int64_t capacity = kMaxCapacity;
  while (capacity / 2 >= memory) capacity /= 2;
  return capacity;
}

Arena::Arena(int64_t capacity) : file_(memfd_create("pytriton", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  if (!file_.valid()) throw ArenaError(SystemError("cannot create shared memory"));
  const int order = OrderOf(capacity);
  if (ftruncate(file_.get(), int64_t{1} << order) != 0) throw ArenaError(SystemError("cannot size shared memory"));
  if (!Seal(file_.get())) throw ArenaError(SystemError("cannot seal shared memory"));
  mapping_ = Mapping(file_.get(), int64_t{1} << order);
  free_.resize(order + 1);
  free_[order].push_back({0, Clock::now(), false});
}

int64_t Arena::MemoryBytes() const { return PagesOf(file_.get()); }

Block Arena::Allocate(int64_t size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Collect(kCollectPerAllocation);
  if (size < 0 || size > mapping_.size() - kBlockHeader) {
    throw ArenaError("a batch of " + std::to_string(size) + " bytes is larger than shared memory may be (" +
                     std::to_string(mapping_.size()) + " bytes)");
  }
  const int order = OrderOf(size + kBlockHeader);
  FreeBlock block;
  if (!TakeFree(order, &block)) {
    Collect(used_.size());
    Merge();
    if (!TakeFree(order, &block)) {
      throw ArenaError("no room for a batch of " + std::to_string(size) + " bytes: " + std::to_string(used_.size()) +
                       " earlier blocks of shared memory are still in use");
    }
  }
  State(mapping_.data() + block.offset).store(1, std::memory_order_relaxed);
  used_.push_back({block.offset, order, ++allocations_});
  return {mapping_.data() + block.offset + kBlockHeader, block.offset + kBlockHeader, allocations_};
}

void Arena::Discard(const Block& block) { State(block.data - kBlockHeader).store(0, std::memory_order_release); }

// Takes a free block of the order, splitting a larger one if there is none.
bool Arena::TakeFree(int order, FreeBlock* block) {
  int from = order;
  const int orders = static_cast<int>(free_.size());
  while (from < orders && free_[from].empty()) ++from;
  if (from >= orders) return false;
  *block = free_[from].back();
  free_[from].pop_back();
  while (from > order) {
    --from;
    free_[from].push_back({block->offset + (int64_t{1} << from), block->since, block->dirty});
  }
  return true;
}

bool Arena::IsInUse(const Block& block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found =
      std::find_if(used_.begin(), used_.end(), [&](const UsedBlock& each) { return each.number == block.number; });
  return found != used_.end() && !Released(*found);
}

bool Arena::Released(const UsedBlock& block) const {
  return State(mapping_.data() + block.offset).load(std::memory_order_acquire) == 0;
}

// Reclaims the blocks that the other side has released, among up to `limit` used ones.
void Arena::Collect(size_t limit) {
  limit = std::min(limit, used_.size());
  for (size_t i = 0; i < limit; ++i) {
    const UsedBlock block = used_.front();
    used_.pop_front();
    if (Released(block)) {
      free_[block.order].push_back({block.offset, Clock::now(), true});
    } else {
      used_.push_back(block);  // in use for long: check the others before this one again
    }
  }
}

// Merges free buddies. Only done if no block fits: the same sizes tend to be needed again.
void Arena::Merge() {
  for (size_t order = kMinOrder; order + 1 < free_.size(); ++order) {
    std::vector<FreeBlock>& blocks = free_[order];
    std::sort(blocks.begin(), blocks.end(), [](const FreeBlock& a, const FreeBlock& b) { return a.offset < b.offset; });
    std::vector<FreeBlock> single;
    const int64_t size = int64_t{1} << order;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const FreeBlock& block = blocks[i];
      if (block.offset % (2 * size) == 0 && i + 1 < blocks.size() && blocks[i + 1].offset == block.offset + size) {
        const FreeBlock& buddy = blocks[++i];
        free_[order + 1].push_back({block.offset, std::max(block.since, buddy.since), block.dirty || buddy.dirty});
      } else {
        single.push_back(block);
      }
    }
    blocks = std::move(single);
  }
}

void Arena::Trim(Clock::time_point before) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Collect(used_.size());
  if (keeps_pages_) return;
  for (size_t order = kMinOrder; order < free_.size(); ++order) {
    for (FreeBlock& block : free_[order]) {
      if (!block.dirty || block.since > before) continue;
      fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, block.offset, int64_t{1} << order);
      block.dirty = false;
    }
  }
}

size_t Arena::in_use() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Collect(used_.size());
  return used_.size();
}

int64_t Arena::allocations() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return allocations_;
}

PeerArena::PeerArena(FileDescriptor file) {
  if (!IsSealed(file.get())) throw ArenaError("the other side's shared memory may shrink");
  if (HasHugePages(file.get())) throw ArenaError("the other side's shared memory has huge pages");
  struct stat status = {};
  if (fstat(file.get(), &status) != 0) throw ArenaError(SystemError("cannot examine the other side's shared memory"));
  mapping_ = Mapping(file.get(), status.st_size);
  file_ = std::move(file);
}

int64_t PeerArena::MemoryBytes() const { return PagesOf(file_.get()); }

const char* PeerArena::At(int64_t offset, int64_t size) const {
  if (offset < kBlockHeader || size < 0 || offset > mapping_.size() || size > mapping_.size() - offset) {
    throw ArenaError("the other side refers to a block outside its shared memory");
  }
  if (offset % static_cast<int64_t>(sizeof(int64_t)) != 0) {
    throw ArenaError("the other side refers to a block at " + std::to_string(offset) +
                     ", which is not aligned to a word");
  }
  return mapping_.data() + offset;
}

void PeerArena::Release(int64_t offset) const {
  State(mapping_.data() + offset - kBlockHeader).store(0, std::memory_order_release);
}

}  // namespace pytriton
