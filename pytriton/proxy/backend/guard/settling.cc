#include "guard/settling.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace pytriton::guard {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kMoment = std::chrono::milliseconds(100);

// Never destroyed: threads of the front ends outlive static objects.
struct Loads {
  std::mutex mutex;
  Clock::time_point all;
  std::map<std::string, Clock::time_point> models;
};

Loads& Current() {
  static auto* loads = new Loads;  // NOLINT
  return *loads;
}

}  // namespace

void NoteLoaded(const char* model) {
  const Clock::time_point now = Clock::now();
  Loads& loads = Current();
  const std::lock_guard<std::mutex> lock(loads.mutex);
  for (auto each = loads.models.begin(); each != loads.models.end();) {
    each = now - each->second > kMoment ? loads.models.erase(each) : std::next(each);
  }
  (model == nullptr ? loads.all : loads.models[model]) = now;
}

void WaitUntilSettled(const char* model) {
  Loads& loads = Current();
  Clock::time_point last;
  {
    const std::lock_guard<std::mutex> lock(loads.mutex);
    last = loads.all;
    for (const auto& [name, time] : loads.models) {
      if (model == nullptr || name == model) last = std::max(last, time);
    }
  }
  std::this_thread::sleep_until(last + kMoment);
}

}  // namespace pytriton::guard
