#include "services/call_chain.h"

#include <algorithm>
#include <sstream>

namespace pytriton {

std::string ToText(const CallChain& call_chain) {
  std::string text;
  for (const Caller& each : call_chain) {
    text += each.place + ' ' + std::to_string(each.capacity) + ' ' + std::to_string(each.version) + ' ' + each.model;
    text += '\n';
  }
  return text;
}

CallChain ParseCallChain(std::string_view text) {
  CallChain call_chain;
  std::istringstream lines{std::string(text)};
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    Caller caller;
    if (!(fields >> caller.place >> caller.capacity >> caller.version) || fields.get() != ' ') continue;
    std::getline(fields, caller.model);
    if (!caller.model.empty()) call_chain.push_back(std::move(caller));
  }
  return call_chain;
}

void Join(CallChain* call_chain, const CallChain& others) {
  for (const Caller& each : others) {
    if (std::find(call_chain->begin(), call_chain->end(), each) == call_chain->end()) call_chain->push_back(each);
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

bool IsCycle(const CallChain& call_chain, const std::string& model, int64_t version, const Capacities& capacities) {
  if (version < 0) {
    version = capacities.Latest(model);
    for (const Caller& each : call_chain) {
      if (each.model == model) version = std::max(version, each.version);
    }
  }
  int64_t waiting = 0;
  int64_t capacity = capacities.Of(model, version);
  for (const Caller& each : call_chain) {
    if (each.model != model || each.version != version) continue;
    ++waiting;
    capacity = std::max(capacity, each.capacity);
  }
  return waiting > 0 && waiting >= capacity;
}

std::string DescribeChain(const CallChain& call_chain, const std::string& model) {
  constexpr size_t kMost = 8;
  std::string chain;
  for (size_t i = call_chain.size() > kMost ? call_chain.size() - kMost : 0; i < call_chain.size(); ++i) {
    chain += "'" + call_chain[i].model + "' calls ";
  }
  return (call_chain.size() > kMost ? "... " : "") + chain + "'" + model + "'";
}

}  // namespace pytriton
