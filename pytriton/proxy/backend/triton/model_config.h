// A model's configuration, as Triton has completed it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "triton/api.h"

namespace pytriton {

class ModelConfig {
 public:
  // Parses JSON. Throws JsonError.
  explicit ModelConfig(std::string json) : text_(std::move(json)), config_(Json::Parse(text_)) {}
  // Reads the configuration of a model. Throws TritonError, or JsonError.
  static ModelConfig Of(TRITONBACKEND_Model* model);

  const std::string& json() const { return text_; }

  int64_t max_batch_size() const;
  // The number of batches in the warm-up of each instance.
  int WarmupCount() const;
  // Whether requests may differ in their inputs or shapes.
  bool HasVariableInputs() const;
  // Whether the model's queue has limits, timeouts or priorities.
  bool HasQueuePolicy() const;
  // Whether the backend builds the batches, instead of Triton's dynamic batcher.
  bool IsBatchedByBackend() const;
  // One of the outputs if Triton caches the responses; else empty.
  std::string CachedOutput() const;
  // The value of a parameter; empty if there is none.
  const std::string& StringParameter(std::string_view name) const;
  // The number of dimensions, including the batch, of each of these inputs in requests to a model with batches; 0 for
  // those that the configuration lacks.
  std::vector<uint32_t> InputRanks(const std::vector<std::string>& inputs) const;

 private:
  std::string text_;
  Json config_;
};

}  // namespace pytriton
