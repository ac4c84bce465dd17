// The symbols of the program itself, by its symbol table.
#pragma once

namespace pytriton::guard {

// Returns the address of a symbol, by its mangled name; null if the program has none, as when it is stripped.
void* ProgramSymbol(const char* name);

}  // namespace pytriton::guard
