#include "guard/arguments.h"

#include <cstdlib>
#include <cstring>
#include <string>

namespace pytriton::guard {

namespace {

constexpr char kMark[] = "=@PYTRITON_SECRET_";

}  // namespace

void FillInSecrets(char** arguments) {
  for (; *arguments != nullptr; ++arguments) {
    const char* const argument = *arguments;
    const char* const mark = std::strstr(argument, kMark);
    if (mark == nullptr) continue;
    const std::string variable(mark + 2);
    const char* const value = std::getenv(variable.c_str());
    if (value == nullptr) continue;
    *arguments = strdup((std::string(argument, mark + 1) + value).c_str());  // for as long as the process lives
    unsetenv(variable.c_str());
  }
}

}  // namespace pytriton::guard
