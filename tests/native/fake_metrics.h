// More of the stand-in for the server: metrics, and the parameters that label them.
#pragma once

#include <string>

#include "triton/api.h"

struct TRITONSERVER_Parameter {
  std::string name;
  std::string value;
};

namespace fake_metrics {

// The value of a metric whose family has that name; NaN where there is none.
double ValueOf(const std::string& family);

}  // namespace fake_metrics
