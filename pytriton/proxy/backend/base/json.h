// Parses the JSON with which Triton describes models and the backend.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pytriton {

class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A value; a missing value is empty.
class Json {
 public:
  // Throws JsonError.
  static Json Parse(std::string_view text);

  // A member of an object; empty if there is none, or this is not an object.
  const Json& operator[](std::string_view name) const;
  bool is_missing() const { return text_.empty() && items_.empty() && members_.empty(); }
  // The elements of an array.
  const std::vector<Json>& items() const { return items_; }
  // The characters of a string; a number, `true`, `false` or `null` as it is written.
  const std::string& text() const { return text_; }

 private:
  friend class JsonReader;

  std::string text_;
  std::vector<Json> items_;
  std::vector<std::pair<std::string, Json>> members_;
};

}  // namespace pytriton
