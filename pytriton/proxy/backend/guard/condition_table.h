// A table of objects that belong to condition variables, for look-ups without a lock.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstddef>

#include "guard/address_hash.h"

namespace pytriton::guard {

// Its items are never freed, since threads may still use one whose condition variable has gone. They may then belong to
// another one.
template <typename Item>
class ConditionTable {
 public:
  // Returns the item of a condition variable; null if there is none.
  Item* Find(const pthread_cond_t* condition) {
    const size_t bucket = AddressHash(condition, kBucketBits);
    for (size_t i = 0; i < kBucketSize; ++i) {
      if (buckets_[bucket].conditions[i].load(std::memory_order_acquire) == condition) return &items_[bucket][i];
    }
    return nullptr;
  }

  // Returns an unused item, which belongs to the condition variable from now on; null if there are too many.
  Item* Add(const pthread_cond_t* condition) {
    const size_t bucket = AddressHash(condition, kBucketBits);
    for (size_t i = 0; i < kBucketSize; ++i) {
      const pthread_cond_t* none = nullptr;
      if (buckets_[bucket].conditions[i].compare_exchange_strong(none, condition)) return &items_[bucket][i];
    }
    return nullptr;
  }

  void Remove(const Item* item) {
    const auto place = static_cast<size_t>(item - items_[0].data());
    buckets_[place / kBucketSize].conditions[place % kBucketSize].store(nullptr);
  }

 private:
  static constexpr int kBucketBits = 9;
  static constexpr size_t kBucketSize = 8;

  // As many pointers as a cache line holds.
  struct alignas(64) Bucket {
    std::array<std::atomic<const pthread_cond_t*>, kBucketSize> conditions{};
  };

  std::array<Bucket, size_t{1} << kBucketBits> buckets_;
  std::array<std::array<Item, kBucketSize>, size_t{1} << kBucketBits> items_;
};

}  // namespace pytriton::guard
