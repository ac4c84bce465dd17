// Gives the readers what is not a message: nothing but ProtocolError may come of it. `wire_fuzz ROUNDS`.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "messages.h"

namespace {

using pytriton::DecodeMessage;
using pytriton::EncodeMessage;
using pytriton::kMessageKinds;
using pytriton::RandomMessage;

class Fuzzer {
 public:
  void Round() {
    const int kind = static_cast<int>(Below(kMessageKinds));
    const int64_t data_size = Below(200);
    const pytriton::Message message = RandomMessage(kind, data_size, &random_);
    std::string bytes = EncodeMessage(message) + std::string(data_size, 'x');
    const std::vector<char> whole(bytes.begin(), bytes.end());
    if (!Equal(DecodeMessage(kind, whole.data(), static_cast<int64_t>(whole.size())), message)) {
      std::fprintf(stderr, "a message of kind %d was read as another\n", kind);
      std::exit(1);
    }
    Mutate(&bytes);
    // On the heap, no longer than the message: the address sanitizer sees the first byte behind it.
    const std::vector<char> exact(bytes.begin(), bytes.end());
    for (int reader = 0; reader < kMessageKinds; ++reader) {
      try {
        DecodeMessage(reader, exact.data(), static_cast<int64_t>(exact.size()));
        ++accepted;
      } catch (const pytriton::ProtocolError&) {
        ++refused;
      }
    }
  }

  int64_t accepted = 0;
  int64_t refused = 0;

 private:
  int64_t Below(int64_t bound) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound)); }

  int64_t Word() {
    constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
    constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
    constexpr int64_t kWords[] = {0, 1, -1, 2, 3, 7, 8, 16, 64, kMin, kMin + 1, kMax, kMax - 1, kMax / 8, 1 << 30};
    switch (Below(3)) {
      case 0:
        return kWords[Below(std::size(kWords))];
      case 1:
        return Below(300);
      default:
        return static_cast<int64_t>(random_());
    }
  }

  void Mutate(std::string* bytes) {
    const int64_t changes = 1 + Below(3);
    for (int64_t i = 0; i < changes && !bytes->empty(); ++i) {
      const auto size = static_cast<int64_t>(bytes->size());
      switch (Below(5)) {
        case 0:
          bytes->resize(Below(size + 1));
          break;
        case 1:
          (*bytes)[Below(size)] = static_cast<char>(random_());
          break;
        case 2:  // noise
          for (char& byte : *bytes) byte = static_cast<char>(random_());
          break;
        default:  // mostly: a word, which may be a count, an offset or a size
          if (size >= 8) {
            const int64_t word = Word();
            std::memcpy(bytes->data() + Below(std::min<int64_t>(size / 8, 40)) * 8, &word, 8);
          }
      }
    }
  }

  std::mt19937_64 random_{20240229};
};

}  // namespace

int main(int argc, char** argv) {
  const int64_t rounds = argc > 1 ? std::atoll(argv[1]) : 1000;
  Fuzzer fuzzer;
  for (int64_t i = 0; i < rounds; ++i) fuzzer.Round();
  std::printf("accepted %lld, refused %lld\n", static_cast<long long>(fuzzer.accepted),
              static_cast<long long>(fuzzer.refused));
  return 0;
}
