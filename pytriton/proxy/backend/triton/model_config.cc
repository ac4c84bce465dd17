#include "triton/model_config.h"

#include <algorithm>
#include <cstdlib>

#include "triton/error.h"

namespace pytriton {

namespace {

constexpr char kBuildsBatches[] = "pytriton_builds_batches";

int64_t IntegerOf(const Json& number) { return std::atoll(number.text().c_str()); }

bool IsTrue(const Json& flag) { return flag.text() == "true"; }

}  // namespace

ModelConfig ModelConfig::Of(TRITONBACKEND_Model* model) {
  TRITONSERVER_Message* config = nullptr;
  Check(TRITONBACKEND_ModelConfig(model, 1, &config));
  const char* json = nullptr;
  size_t size = 0;
  TRITONSERVER_Error* error = TRITONSERVER_MessageSerializeToJson(config, &json, &size);
  std::string text = error == nullptr ? std::string(json, size) : std::string();
  LogIfError(TRITONSERVER_MessageDelete(config), "cannot delete a model configuration");
  Check(error);
  return ModelConfig(std::move(text));
}

int64_t ModelConfig::max_batch_size() const { return IntegerOf(config_["max_batch_size"]); }

int ModelConfig::WarmupCount() const {
  int64_t count = 0;
  for (const Json& warmup : config_["model_warmup"].items()) {
    count += std::max<int64_t>(IntegerOf(warmup["count"]), 1);
  }
  return static_cast<int>(count);
}

bool ModelConfig::HasVariableInputs() const {
  const std::vector<Json>& inputs = config_["input"].items();
  return std::any_of(inputs.begin(), inputs.end(), [](const Json& input) {
    const std::vector<Json>& dims = input["dims"].items();
    return IsTrue(input["optional"]) ||
           std::any_of(dims.begin(), dims.end(), [](const Json& dim) { return dim.text() == "-1"; });
  });
}

bool ModelConfig::HasQueuePolicy() const {
  const Json& batcher = config_["dynamic_batching"];
  return !batcher["default_queue_policy"].is_missing() || IntegerOf(batcher["priority_levels"]) > 0;
}

bool ModelConfig::IsBatchedByBackend() const {
  return max_batch_size() > 0 && !config_["parameters"][kBuildsBatches].is_missing();
}

std::string ModelConfig::CachedOutput() const {
  const std::vector<Json>& outputs = config_["output"].items();
  return IsTrue(config_["response_cache"]["enable"]) && !outputs.empty() ? outputs[0]["name"].text() : "";
}

const std::string& ModelConfig::StringParameter(std::string_view name) const {
  return config_["parameters"][name]["string_value"].text();
}

std::vector<uint32_t> ModelConfig::InputRanks(const std::vector<std::string>& inputs) const {
  std::vector<uint32_t> ranks(inputs.size(), 0);
  for (const Json& input : config_["input"].items()) {
    const auto found = std::find(inputs.begin(), inputs.end(), input["name"].text());
    if (found == inputs.end()) continue;
    const Json& dims = input["reshape"].is_missing() ? input["dims"] : input["reshape"]["shape"];
    ranks[found - inputs.begin()] = static_cast<uint32_t>(dims.items().size()) + 1;
  }
  return ranks;
}

}  // namespace pytriton
