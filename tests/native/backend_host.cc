// Opens a backend as a server of some API version does: `backend_host LIBRARY MAJOR MINOR`. Prints the error with which
// the backend answers, or that there is none.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "fake_triton.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s LIBRARY MAJOR MINOR\n", argv[0]);
    return 2;
  }
  fake_triton::SetApiVersion(std::atoi(argv[2]), std::atoi(argv[3]));
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  using Function = TRITONSERVER_Error* (*)(TRITONBACKEND_Backend*);
  const auto initialize = reinterpret_cast<Function>(dlsym(library, "TRITONBACKEND_Initialize"));
  const auto finalize = reinterpret_cast<Function>(dlsym(library, "TRITONBACKEND_Finalize"));
  TRITONBACKEND_Backend backend;
  if (TRITONSERVER_Error* error = initialize(&backend)) {
    std::printf("error %d: %s\n", TRITONSERVER_ErrorCode(error), TRITONSERVER_ErrorMessage(error));
    TRITONSERVER_ErrorDelete(error);
    return 0;
  }
  TRITONSERVER_ErrorDelete(finalize(&backend));
  std::printf("initialized\n");
  return 0;
}
