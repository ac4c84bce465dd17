#include "services/histogram.h"

#include <algorithm>
#include <limits>

namespace pytriton {

Histogram::Histogram(const std::vector<int64_t>& bounds, double unit)
    : bounds_(bounds), unit_(unit), buckets_(new Bucket[bounds.size() + 1]) {}

void Histogram::Observe(int64_t value, uint64_t count) {
  const size_t index = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  Bucket& bucket = buckets_[index];
  bucket.sum.fetch_add(value * static_cast<int64_t>(count), std::memory_order_relaxed);
  bucket.count.fetch_add(count, std::memory_order_release);
}

// Triton's histograms accept one value at a time, so a bucket's values are published as the same number of integers
// around their mean: counts and sum stay exact.
void Histogram::Publish(Metric* metric) {
  for (size_t i = 0; i <= bounds_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    const auto count = static_cast<int64_t>(bucket.count.load(std::memory_order_acquire) - bucket.published_count);
    if (count == 0) continue;
    const int64_t sum = bucket.sum.load(std::memory_order_relaxed) - bucket.published_sum;
    const int64_t least = i == 0 ? 0 : bounds_[i - 1] + 1;
    const int64_t most = i == bounds_.size() ? std::numeric_limits<int64_t>::max() : bounds_[i];
    // The sum may be ahead of the count; the rest is published next time.
    const int64_t mean = std::clamp(sum / count, least, most);
    const int64_t remainder = mean < most ? std::clamp(sum - mean * count, int64_t{0}, count) : 0;
    for (int64_t n = 0; n < count; ++n) metric->Observe(static_cast<double>(mean + (n < remainder ? 1 : 0)) / unit_);
    bucket.published_count += static_cast<uint64_t>(count);
    bucket.published_sum += mean * count + remainder;
  }
}

}  // namespace pytriton
