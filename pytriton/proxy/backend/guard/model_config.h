// The configuration of a model as clients see it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace pytriton::guard {

// Replaces, in a configuration (JSON, as Triton writes it), the parameter by which the backend builds batches with the
// dynamic batcher that it stands for; returns nothing for the configuration of another model. Counterpart of
// `model_config/triton_config.py`.
std::optional<std::string> WithBatcher(std::string_view config);

}  // namespace pytriton::guard
