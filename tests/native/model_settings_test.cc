// What the backend reads from a model's configuration: `model_settings_test BEHAVIOR`, or `--list`.
#include <string>
#include <vector>

#include "data_path.h"
#include "triton/model_config.h"

namespace data_path {

namespace {

using pytriton::ModelConfig;

void WarmupsAreCounted() {
  CHECK(ModelConfig("{}").WarmupCount() == 0);
  // A sample without a count is executed once.
  CHECK(ModelConfig(R"({"model_warmup": [{"name": "a"}, {"count": 0}, {"count": 3}]})").WarmupCount() == 5);
}

void InputsMayVary() {
  const auto varies = [](const std::string& input) {
    return ModelConfig(R"({"input": [{"dims": [3]}, )" + input + "]}").HasVariableInputs();
  };
  CHECK(!varies(R"({"dims": [3, 4], "optional": false})"));
  CHECK(varies(R"({"dims": [3, -1]})"));
  CHECK(varies(R"({"dims": [3], "optional": true})"));
}

void QueuesMayHavePolicies() {
  const auto has_policy = [](const std::string& batcher) {
    return ModelConfig(R"({"dynamic_batching": )" + batcher + "}").HasQueuePolicy();
  };
  CHECK(!has_policy("{}"));
  CHECK(!has_policy(R"({"priority_levels": 0})"));
  CHECK(has_policy(R"({"priority_levels": "2"})"));
  CHECK(has_policy(R"({"default_queue_policy": {"max_queue_size": 1}})"));
}

void OnlyModelsWithBatchesHaveThemBuilt() {
  const std::string parameters = R"("parameters": {"pytriton_builds_batches": {"string_value": "yes"}}})";
  CHECK(ModelConfig(R"({"max_batch_size": 8, )" + parameters).IsBatchedByBackend());
  CHECK(!ModelConfig(R"({"max_batch_size": 0, )" + parameters).IsBatchedByBackend());
  CHECK(!ModelConfig(R"({"max_batch_size": 8})").IsBatchedByBackend());
}

void AnOutputIsNamedIfResponsesAreCached() {
  const std::string outputs = R"("output": [{"name": "Y"}, {"name": "Z"}])";
  CHECK(ModelConfig("{" + outputs + R"(, "response_cache": {"enable": true}})").CachedOutput() == "Y");
  CHECK(ModelConfig("{" + outputs + R"(, "response_cache": {"enable": false}})").CachedOutput().empty());
  CHECK(ModelConfig(R"({"response_cache": {"enable": true}})").CachedOutput().empty());
}

void InputsHaveTheBatchBeforeTheirDimensions() {
  const ModelConfig config(R"({"input": [{"name": "A", "dims": [2, 3]}, {"name": "B", "dims": [1],
                               "reshape": {"shape": []}}, {"name": "unknown", "dims": [1]}]})");
  CHECK(config.InputRanks({"B", "A", "C"}) == (std::vector<uint32_t>{1, 3, 0}));
}

const Behaviors kBehaviors = {
    {"warmups_are_counted", WarmupsAreCounted},
    {"inputs_may_vary", InputsMayVary},
    {"queues_may_have_policies", QueuesMayHavePolicies},
    {"only_models_with_batches_have_them_built", OnlyModelsWithBatchesHaveThemBuilt},
    {"an_output_is_named_if_responses_are_cached", AnOutputIsNamedIfResponsesAreCached},
    {"inputs_have_the_batch_before_their_dimensions", InputsHaveTheBatchBeforeTheirDimensions},
};

}  // namespace

}  // namespace data_path

int main(int argc, char** argv) { return data_path::Run(data_path::kBehaviors, argc, argv); }
