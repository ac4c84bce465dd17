// The requests of the next batch, for models to which Triton hands over one request at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "triton/api.h"

namespace pytriton {

class BatchBuilder {
 public:
  // `has_variable_inputs`: whether requests may differ in their inputs or shapes.
  BatchBuilder(int64_t max_rows, bool has_variable_inputs)
      : max_rows_(max_rows), has_variable_inputs_(has_variable_inputs) {}

  // Adds a request to the batch. Returns false if it does not fit there: too many rows, other inputs, or other shapes.
  // Any request fits in an empty batch.
  bool Add(TRITONBACKEND_Request* request);
  // Whether more requests are likely to arrive soon, since the last batch had more; true only once for a batch.
  bool ExpectsMore() { return requests_.size() < last_size_ && !std::exchange(has_expected_more_, true); }
  size_t size() const { return requests_.size(); }
  bool is_empty() const { return requests_.empty(); }
  bool is_full() const { return rows_ >= max_rows_; }
  // Returns the requests, and begins with a new batch.
  std::vector<TRITONBACKEND_Request*> Take();

 private:
  int64_t RowsOf(TRITONBACKEND_Request* request) const;

  const int64_t max_rows_;
  const bool has_variable_inputs_;
  std::vector<TRITONBACKEND_Request*> requests_;
  int64_t rows_ = 0;
  size_t last_size_ = 0;
  bool has_expected_more_ = false;
};

}  // namespace pytriton
