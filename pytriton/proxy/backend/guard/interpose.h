// Calls the functions that this library overrides.
#pragma once

namespace pytriton::guard {

// Returns the next definition of a function after this library's; null if there is none.
void* NextDefinition(const char* name);

// Whether code of the program itself, rather than of a library, has a call's return address.
bool IsInProgram(const void* return_address);

}  // namespace pytriton::guard

// The definition of `function` that this library overrides.
#define PYTRITON_NEXT(function)                                                                                     \
  ([] {                                                                                                             \
    static const auto next = reinterpret_cast<decltype(&(function))>(::pytriton::guard::NextDefinition(#function)); \
    return next;                                                                                                    \
  }())

// Whether the caller of the current function is the program itself, rather than a library.
#define PYTRITON_CALLED_BY_PROGRAM() (::pytriton::guard::IsInProgram(__builtin_return_address(0)))
