#include "callers.h"

#include <algorithm>
#include <sstream>

namespace pytriton {

std::string ToText(const Callers& callers) {
  std::string text;
  for (const Caller& each : callers) {
    text += each.place + ' ' + std::to_string(each.capacity) + ' ' + std::to_string(each.version) + ' ' + each.model;
    text += '\n';
  }
  return text;
}

Callers CallersOf(std::string_view text) {
  Callers callers;
  std::istringstream lines{std::string(text)};
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    Caller caller;
    if (!(fields >> caller.place >> caller.capacity >> caller.version) || fields.get() != ' ') continue;
    std::getline(fields, caller.model);
    if (!caller.model.empty()) callers.push_back(std::move(caller));
  }
  return callers;
}

void Join(Callers* callers, const Callers& others) {
  for (const Caller& each : others) {
    if (std::find(callers->begin(), callers->end(), each) == callers->end()) callers->push_back(each);
  }
}

void Capacities::Add(const std::string& model, int64_t version, int64_t capacity) {
  if (capacity == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  std::map<int64_t, int64_t>& versions = capacities_[model];
  if ((versions[version] += capacity) == 0) versions.erase(version);
  if (versions.empty()) capacities_.erase(model);
}

int64_t Capacities::Of(const std::string& model, int64_t version) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = capacities_.find(model);
  if (found == capacities_.end()) return 0;
  const auto of_version = found->second.find(version);
  return of_version == found->second.end() ? 0 : of_version->second;
}

int64_t Capacities::Latest(const std::string& model) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = capacities_.find(model);
  return found == capacities_.end() ? -1 : found->second.rbegin()->first;
}

bool IsCycle(const Callers& callers, const std::string& model, int64_t version, const Capacities& capacities) {
  if (version < 0) {
    version = capacities.Latest(model);
    for (const Caller& each : callers) {
      if (each.model == model) version = std::max(version, each.version);
    }
  }
  int64_t waiting = 0;
  int64_t capacity = capacities.Of(model, version);
  for (const Caller& each : callers) {
    if (each.model != model || each.version != version) continue;
    ++waiting;
    capacity = std::max(capacity, each.capacity);
  }
  return waiting > 0 && waiting >= capacity;
}

std::string Chain(const Callers& callers, const std::string& model) {
  constexpr size_t kMost = 8;
  std::string chain;
  for (size_t i = callers.size() > kMost ? callers.size() - kMost : 0; i < callers.size(); ++i) {
    chain += "'" + callers[i].model + "' asks ";
  }
  return (callers.size() > kMost ? "... " : "") + chain + "'" + model + "'";
}

}  // namespace pytriton
