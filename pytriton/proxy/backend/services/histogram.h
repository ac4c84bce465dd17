// A histogram in plain atomics: cheap to add to on the hot path. Another thread publishes it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "services/metrics.h"

namespace pytriton {

class Histogram {
 public:
  // `bounds`: ascending upper bounds, inclusive; they outlive the histogram. `unit`: the divisor of published values.
  Histogram(const std::vector<int64_t>& bounds, double unit);

  // Adds `count` times a value. From any thread; without a lock, and nothing is allocated.
  void Observe(int64_t value, uint64_t count = 1);

  // Adds the values since the last call to Triton's metric. For one thread at a time.
  void Publish(Metric* metric);

 private:
  struct Bucket {
    std::atomic<uint64_t> count{0};
    std::atomic<int64_t> sum{0};
    uint64_t published_count = 0;
    int64_t published_sum = 0;
  };

  const std::vector<int64_t>& bounds_;
  const double unit_;
  const std::unique_ptr<Bucket[]> buckets_;  // the last one has no bound
};

}  // namespace pytriton
