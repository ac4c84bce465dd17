// Workaround for Triton (content-lengths): the HTTP front end parses Content-Length with `atoi`, and allocates that
// many bytes for the JSON of a request. If the number does not fit an `int`, this throws an exception that is not
// caught. libevhtp takes the real length from a second header or from chunks.
#include <limits>

#include "guard/interpose.h"

namespace {

using Parse = long (*)(const char*, char**, int);  // NOLINT(google-runtime-int): as in C

}  // namespace

// The function that `atoi` calls. With newer C libraries, the header gives this name to another function.
extern "C" long ParseNumber(const char* text, char** end, int base) __asm__("strtol");  // NOLINT(google-runtime-int)
extern "C" long ParseNumber(const char* text, char** end, int base) {                   // NOLINT(google-runtime-int)
  static const auto next = reinterpret_cast<Parse>(pytriton::guard::NextDefinition("strtol"));
  const auto number = next(text, end, base);
  const bool is_int = std::numeric_limits<int>::min() <= number && number <= std::numeric_limits<int>::max();
  return is_int || end != nullptr || !PYTRITON_CALLED_BY_PROGRAM() ? number : 0;
}
