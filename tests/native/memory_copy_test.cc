// Copies of large blocks of memory: `memory_copy_test BEHAVIOR`, or `--list`.
#include "base/memory_copy.h"

#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "data_path.h"

namespace data_path {

namespace {

constexpr int64_t kMiB = 1 << 20;

// Copies bytes that differ from one another and from one `seed` to the next, between other bytes that stay as they are.
bool IsCopied(int64_t size, unsigned seed) {
  std::vector<uint32_t> numbers(size / sizeof(uint32_t) + 1);
  std::iota(numbers.begin(), numbers.end(), seed << 24);
  const std::string source(reinterpret_cast<const char*>(numbers.data()), size);
  std::string target(size + 2, '*');
  pytriton::CopyMemory(target.data() + 1, source.data(), size);
  return target == "*" + source + "*";
}

void BlocksOfAnySizeAreCopiedWhole() {
  for (const int64_t size : {int64_t{0}, int64_t{1}, 2 * kMiB - 1, 2 * kMiB, 2 * kMiB + 1, 20 * kMiB}) {
    CHECK(IsCopied(size, 0));
  }
}

void ThreadsCopyAtTheSameTime() {
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < 4; ++thread) {
    threads.emplace_back([thread] {
      for (int64_t i = 0; i < 50; ++i) CHECK(IsCopied(2 * kMiB + i, 50 * thread + i));
    });
  }
  for (std::thread& each : threads) each.join();
}

const Behaviors kBehaviors = {
    {"blocks_of_any_size_are_copied_whole", BlocksOfAnySizeAreCopiedWhole},
    {"threads_copy_at_the_same_time", ThreadsCopyAtTheSameTime},
};

}  // namespace

}  // namespace data_path

int main(int argc, char** argv) { return data_path::Run(data_path::kBehaviors, argc, argv); }
