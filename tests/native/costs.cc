// Counts what the backend does for a batch in sequential mode, in the thread that Triton calls it in: `costs REQUESTS
// ROWS`. Prints one `name=number` per line. Its socket goes to the current folder. Times vary from machine to machine;
// these counts do not.
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "data_path.h"

namespace {

constexpr size_t kLarge = 1024;  // bytes of a copy that is one of tensors

struct Counts {
  int64_t allocations = 0;
  int64_t copied_bytes = 0;
  int64_t system_calls = 0;
};

thread_local Counts counts;
thread_local bool is_counting = false;  // not while the fake server works

}  // namespace

void* operator new(size_t size) {
  if (is_counting) ++counts.allocations;
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

// The linker has everyone call these in place of the functions (`--wrap`).
extern "C" {

void* __real_memcpy(void* target, const void* source, size_t size);
void* __wrap_memcpy(void* target, const void* source, size_t size) {
  if (is_counting && size >= kLarge) counts.copied_bytes += static_cast<int64_t>(size);
  return __real_memcpy(target, source, size);
}

ssize_t __real_sendmsg(int socket, const msghdr* message, int flags);
ssize_t __wrap_sendmsg(int socket, const msghdr* message, int flags) {
  if (is_counting) ++counts.system_calls;
  return __real_sendmsg(socket, message, flags);
}

ssize_t __real_recvmsg(int socket, msghdr* message, int flags);
ssize_t __wrap_recvmsg(int socket, msghdr* message, int flags) {
  if (is_counting) ++counts.system_calls;
  return __real_recvmsg(socket, message, flags);
}

int __real_sched_yield();
int __wrap_sched_yield() {
  if (is_counting) ++counts.system_calls;
  return __real_sched_yield();
}

// Of futexes; it takes six arguments, also where the call has fewer, which AddressSanitizer would see.
int64_t __real_syscall(int64_t number, ...);
__attribute__((no_sanitize_address)) int64_t __wrap_syscall(int64_t number, ...) {
  if (is_counting) ++counts.system_calls;
  va_list list;
  va_start(list, number);
  int64_t arguments[6];
  for (int64_t& argument : arguments) argument = va_arg(list, int64_t);
  va_end(list);
  return __real_syscall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

}  // extern "C"

namespace data_path {

namespace {

constexpr int kBatches = 20;

void Count(int request_count, int64_t rows) {
  std::mt19937_64 random(1);
  Model model("costs", 1, true, fake_worker::Echo);
  model.Load();
  Counts total;
  rusage before = {};
  std::vector<int64_t> system_calls;  // of each batch
  for (int i = -5; i < kBatches; ++i) {
    Requests batch;
    for (int request = 0; request < request_count; ++request) {
      batch.push_back(model.Request({Numbers("A", TRITONSERVER_TYPE_FP32, {1, rows}, &random)}));
    }
    if (i == 0) {
      total = counts;
      getrusage(RUSAGE_THREAD, &before);
    }
    const int64_t calls_before = counts.system_calls;
    is_counting = true;
    model.Submit(batch);
    is_counting = false;
    if (i >= 0) system_calls.push_back(counts.system_calls - calls_before);
    for (const auto& sent : batch) Model::CheckEchoed(*sent);
  }
  rusage after = {};
  getrusage(RUSAGE_THREAD, &after);
  std::printf("allocations=%.2f\n", static_cast<double>(counts.allocations - total.allocations) / kBatches);
  std::printf("copied_bytes=%.2f\n", static_cast<double>(counts.copied_bytes - total.copied_bytes) / kBatches);
  // The median: a batch whose worker is late, on a busy machine, is looked for again.
  std::nth_element(system_calls.begin(), system_calls.begin() + kBatches / 2, system_calls.end());
  std::printf("system_calls=%lld\n", static_cast<long long>(system_calls[kBatches / 2]));
  std::printf("context_switches=%.2f\n", static_cast<double>(after.ru_nvcsw - before.ru_nvcsw) / kBatches);
}

}  // namespace

}  // namespace data_path

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  data_path::Count(std::atoi(argv[1]), std::atoll(argv[2]));
  return 0;
}
