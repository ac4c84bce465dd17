// The configuration of a model as clients see it.
#pragma once

#include <string>

namespace pytriton::guard {

// Returns a configuration (JSON, as Triton writes it) with the dynamic batcher whose work the backend does, in place of
// the parameter by which the backend knows; any other configuration as it is. Twin of `model_config/triton_config.py`.
std::string WithBatcher(std::string config);

}  // namespace pytriton::guard
