// The requests of the next batch, for models to which Triton hands over one request at a time.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "triton/api.h"

namespace pytriton {

class BatchBuilder {
 public:
  // `has_variable_inputs`: whether requests may have other inputs than others have, or other shapes.
  BatchBuilder(int64_t max_rows, bool has_variable_inputs)
      : max_rows_(max_rows), has_variable_inputs_(has_variable_inputs) {}

  // Adds a request to the batch. Returns false if it does not fit there: too many rows, other inputs, or other shapes.
  // Any request fits in an empty batch.
  bool Add(TRITONBACKEND_Request* request);
  bool is_full() const { return rows_ >= max_rows_; }
  // Returns the requests, and begins with a new batch.
  std::vector<TRITONBACKEND_Request*> Take();

 private:
  // The inputs of a request by name, with their dimensions beyond the first, along which a batch is stacked.
  using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

  static int64_t RowsOf(TRITONBACKEND_Request* request);
  static Shapes ShapesOf(TRITONBACKEND_Request* request);

  const int64_t max_rows_;
  const bool has_variable_inputs_;
  std::vector<TRITONBACKEND_Request*> requests_;
  int64_t rows_ = 0;
  Shapes shapes_;  // of each request in the batch, if they vary
};

}  // namespace pytriton
