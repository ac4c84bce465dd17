#include "guard/model_config.h"

#include <cstdlib>
#include <cstring>

namespace pytriton::guard {

namespace {

// Within strings, quotation marks are escaped, so none of these occurs there.
constexpr char kBuildsBatches[] = R"("pytriton_builds_batches":{"string_value":"yes"})";
constexpr char kMaxBatchSize[] = R"("max_batch_size":)";
constexpr char kInstanceGroup[] = R"("instance_group":)";

// What Triton makes of a dynamic batcher with default settings.
std::string DefaultBatcher(int max_batch_size) {
  return R"("dynamic_batching":{"preferred_batch_size":[)" + std::to_string(max_batch_size) +
         R"(],"max_queue_delay_microseconds":0,"preserve_ordering":false,"priority_levels":0,)"
         R"("default_priority_level":0,"priority_queue_policy":{}},)";
}

}  // namespace

std::string WithBatcher(std::string config) {
  size_t start = config.find(kBuildsBatches);
  const size_t size_key = config.find(kMaxBatchSize);
  const size_t place = config.find(kInstanceGroup);
  if (start == std::string::npos || size_key == std::string::npos || place == std::string::npos) return config;
  const int max_batch_size = std::atoi(config.c_str() + size_key + std::strlen(kMaxBatchSize));
  size_t length = std::strlen(kBuildsBatches);
  if (config[start + length] == ',') {
    ++length;
  } else if (config[start - 1] == ',') {
    --start;
    ++length;
  }
  config.erase(start, length);
  config.insert(start < place ? place - length : place, DefaultBatcher(max_batch_size));
  return config;
}

}  // namespace pytriton::guard
