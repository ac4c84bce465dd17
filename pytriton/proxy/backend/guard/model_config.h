// The configuration of a model as clients see it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace pytriton::guard {

// Returns a configuration (JSON, as Triton writes it) with the dynamic batcher whose work the backend does, in place of
// the parameter by which the backend knows; nothing for the configuration of another model. Twin of
// `model_config/triton_config.py`.
std::optional<std::string> WithBatcher(std::string_view config);

}  // namespace pytriton::guard
