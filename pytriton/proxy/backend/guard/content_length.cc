// Workaround for Triton (content-lengths): the HTTP front end reads Content-Length by `atoi`, and allocates so many
// bytes for the JSON of a request. For a number that is no `int`, that throws an exception that nobody catches.
// libevhtp knows the body's length better, by a second header or by chunks.
#include <limits>

#include "guard/interpose.h"

namespace {

using Parse = long (*)(const char*, char**, int);  // NOLINT(google-runtime-int): as in C

}  // namespace

// What `atoi` calls. With newer C libraries, the header gives this name to another function.
extern "C" long ParseNumber(const char* text, char** end, int base) __asm__("strtol");  // NOLINT(google-runtime-int)
extern "C" long ParseNumber(const char* text, char** end, int base) {                   // NOLINT(google-runtime-int)
  static const auto next = reinterpret_cast<Parse>(pytriton::guard::NextDefinition("strtol"));
  const auto number = next(text, end, base);
  const bool is_int = std::numeric_limits<int>::min() <= number && number <= std::numeric_limits<int>::max();
  return is_int || end != nullptr || !PYTRITON_CALLED_BY_PROGRAM() ? number : 0;
}
