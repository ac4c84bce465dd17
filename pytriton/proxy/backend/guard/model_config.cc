#include "guard/model_config.h"

#include <cstdlib>
#include <cstring>

namespace pytriton::guard {

namespace {

// Within strings, quotation marks are escaped, so these cannot occur there.
constexpr char kBuildsBatches[] = R"("pytriton_builds_batches":{"string_value":"yes"})";
constexpr char kMaxBatchSize[] = R"("max_batch_size":)";
constexpr char kInstanceGroup[] = R"("instance_group":)";

// Triton's JSON of a dynamic batcher with default settings.
std::string DefaultBatcher(int max_batch_size) {
  return R"("dynamic_batching":{"preferred_batch_size":[)" + std::to_string(max_batch_size) +
         R"(],"max_queue_delay_microseconds":0,"preserve_ordering":false,"priority_levels":0,)"
         R"("default_priority_level":0,"priority_queue_policy":{}},)";
}

}  // namespace

std::optional<std::string> WithBatcher(std::string_view config) {
  const size_t parameter = config.find(kBuildsBatches);
  const size_t size = config.find(kMaxBatchSize);
  if (parameter == std::string_view::npos || size == std::string_view::npos ||
      config.find(kInstanceGroup) == std::string_view::npos) {
    return std::nullopt;
  }
  std::string shown(config);
  const int max_batch_size = std::atoi(shown.c_str() + size + std::strlen(kMaxBatchSize));
  const size_t end = parameter + std::strlen(kBuildsBatches);
  const bool is_followed = shown[end] == ',';
  const bool is_last = !is_followed && shown[parameter - 1] == ',';
  shown.erase(is_last ? parameter - 1 : parameter, std::strlen(kBuildsBatches) + (is_followed || is_last ? 1 : 0));
  shown.insert(shown.find(kInstanceGroup), DefaultBatcher(max_batch_size));
  return shown;
}

}  // namespace pytriton::guard
