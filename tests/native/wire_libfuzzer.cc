// The decoders of the wire's messages, for libFuzzer. The first byte of the input chooses the kind of message.
//
// Whatever comes, a decoder reads nothing outside of the input, and throws nothing but ProtocolError; what it accepts
// is the same after it was encoded and decoded again. With the argument `--corpus FOLDER`, the program writes messages
// to start from.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "messages.h"

namespace {

using pytriton::DecodeMessage;
using pytriton::EncodeMessage;
using pytriton::kMessageKinds;

constexpr int kMessagesPerKind = 20;

void WriteCorpus(const std::filesystem::path& folder) {
  std::mt19937_64 random(20240229);
  for (int i = 0; i < kMessageKinds * kMessagesPerKind; ++i) {
    const int kind = i % kMessageKinds;
    const auto data_size = static_cast<int64_t>(random() % 200);
    const std::string message = EncodeMessage(pytriton::RandomMessage(kind, data_size, &random));
    std::ofstream file(folder / std::to_string(i), std::ios::binary);
    file << static_cast<char>(kind) << message << std::string(data_size, 'x');
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc == 3 && std::strcmp((*argv)[1], "--corpus") == 0) {
    WriteCorpus((*argv)[2]);
    std::exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  if (size == 0) return 0;
  const int kind = input[0] % kMessageKinds;
  const std::vector<char> message(input + 1, input + size);  // aligned as in an arena
  try {
    const std::string again = EncodeMessage(DecodeMessage(kind, message.data(), static_cast<int64_t>(message.size())));
    // Tensors may lie anywhere in the first message, so the second one gets as much data.
    std::vector<char> bytes(again.begin(), again.end());
    bytes.resize(bytes.size() + message.size());
    if (EncodeMessage(DecodeMessage(kind, bytes.data(), static_cast<int64_t>(bytes.size()))) != again) std::abort();
  } catch (const pytriton::ProtocolError&) {
  }
  return 0;
}
