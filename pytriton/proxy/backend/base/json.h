// Reads JSON: what Triton says of models and of the backend.
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

// A value; what is not there is an empty one.
class Json {
 public:
  // Throws JsonError.
  static Json Parse(std::string_view text);

  // Of an object; a value that is not there is empty, as is that of anything else.
  const Json& operator[](std::string_view name) const;
  // Of an array.
  const std::vector<Json>& items() const { return items_; }
  // A string's characters; a number, `true`, `false` or `null` as it is written.
  const std::string& text() const { return text_; }

 private:
  friend class JsonReader;

  std::string text_;
  std::vector<Json> items_;
  std::vector<std::pair<std::string, Json>> members_;
};

}  // namespace pytriton
