// The C++ half of the message layout, for Python to call. Kinds of messages are numbered as in `Message`.
#include <cstdint>
#include <random>
#include <string>

#include "messages.h"
#include "return_text.h"

using pytriton::DecodeMessage;
using pytriton::EncodeMessage;
using pytriton::Equal;
using pytriton::Message;
using pytriton::RandomMessage;

namespace {

Message Made(int kind, uint64_t seed, int64_t data_size) {
  std::mt19937_64 random(seed);
  return RandomMessage(kind, data_size, &random);
}

}  // namespace

extern "C" {

int64_t wire_version() { return pytriton::kProtocolVersion; }

// Takes a message apart and puts it together again in `target`. Returns its size; or, when it is none, minus the size
// of the reason.
int64_t wire_recode(int kind, const char* message, int64_t size, char* target, int64_t capacity) {
  try {
    return ReturnText(EncodeMessage(DecodeMessage(kind, message, size)), target, capacity);
  } catch (const pytriton::ProtocolError& error) {
    return -ReturnText(error.what(), target, capacity);
  }
}

// Makes a message up. Returns its size without its data.
int64_t wire_make(int kind, uint64_t seed, int64_t data_size, char* target, int64_t capacity) {
  return ReturnText(EncodeMessage(Made(kind, seed, data_size)), target, capacity);
}

// Whether `message` is the one that `wire_make` makes up.
bool wire_is_made(int kind, uint64_t seed, int64_t data_size, const char* message, int64_t size) {
  return Equal(DecodeMessage(kind, message, size), Made(kind, seed, data_size));
}
}
