// Triton's errors as exceptions, and back.
#pragma once

#include <stdexcept>
#include <string>

#include "triton/api.h"

namespace pytriton {

class TritonError : public std::runtime_error {
 public:
  TritonError(TRITONSERVER_Error_Code code, const std::string& message) : std::runtime_error(message), code_(code) {}
  TRITONSERVER_Error_Code code() const { return code_; }

 private:
  TRITONSERVER_Error_Code code_;
};

// Throws the error that Triton reports, if any.
inline void Check(TRITONSERVER_Error* error) {
  if (error == nullptr) return;
  const TritonError exception(TRITONSERVER_ErrorCode(error), TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
  throw exception;
}

inline void Log(TRITONSERVER_LogLevel level, const std::string& message) {
  TRITONSERVER_ErrorDelete(TRITONSERVER_LogMessage(level, "pytriton", 0, message.c_str()));
}

// Logs a failure that cannot be reported otherwise.
inline void LogIfError(TRITONSERVER_Error* error, const char* what) {
  if (error == nullptr) return;
  Log(TRITONSERVER_LOG_ERROR, std::string(what) + ": " + TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
}

// Runs `body`, and converts exceptions to errors: none may cross into Triton.
template <typename Body>
TRITONSERVER_Error* Guarded(Body body) {
  try {
    body();
    return nullptr;
  } catch (const TritonError& error) {
    return TRITONSERVER_ErrorNew(error.code(), error.what());
  } catch (const std::exception& error) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, error.what());
  }
}

}  // namespace pytriton
