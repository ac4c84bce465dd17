// Workers of many batches at a time that respond at random:
// `concurrent_executor_stress_test BEHAVIOR`, or `--list`. Its sockets go to the current folder.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "concurrent_executor_fixture.h"

namespace data_path {

namespace {

using fake_worker::Reply;
using fake_worker::Taken;
using fake_worker::WorkerEnd;

void MutatedAnswersNeverCrash() {
  std::mt19937_64 random(23);
  std::mt19937_64 mutations(24);
  int64_t failed = 0;
  int64_t served = 0;
  const auto session = [&mutations](WorkerEnd* worker_end) {
    const int64_t kWords[] = {
        0, 1, -1, 2, 3, 64, std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min(), 13, 11, 1 << 20};
    while (const auto taken = worker_end->Take()) {
      std::string message = Reply().Echo(*taken, 0, false).Echo(*taken, 1).Echo(*taken, 0).End(*taken, 2).message();
      for (uint64_t i = 0; i <= mutations() % 2; ++i) {
        const int64_t word =
            mutations() % 4 == 0 ? static_cast<int64_t>(mutations()) : kWords[mutations() % std::size(kWords)];
        std::memcpy(message.data() + mutations() % (message.size() / 8) * 8, &word, 8);
      }
      if (mutations() % 16 == 0) message.resize(mutations() % message.size());
      worker_end->SendMessage(pytriton::NotificationKind::kResponses, 0, message);
      worker_end->Release(*taken);
      // What a mutation has left open ends here, unless the backend has hung up.
      Reply rest;
      for (int64_t i = 0; i < taken->batch.request_count; ++i) rest.End(*taken, i);
      worker_end->Send(rest);
    }
  };
  Model model("mutated", 2, true, {1, true}, session);
  model.Load();
  constexpr int kBatches = 300;
  for (int i = 0; i < kBatches; ++i) {
    const auto request = [&](int64_t dim) {
      return model.Request(
          {Bytes("A", {1, 2}, {"first", "2nd"}), Numbers("B", TRITONSERVER_TYPE_UINT8, {1, dim}, &random)});
    };
    auto batch = BatchOf(request(1), request(1 + i % 2), request(1));
    model.Execute(batch);
    for (const auto& sent : batch) (sent->request.failed ? failed : served) += 1;
  }
  CHECK(failed > kBatches / 10 && served > kBatches / 10);
}

// Answers many batches at a time at random, forgets some requests until they are cancelled, and now and then hangs up.
void Improvise(WorkerEnd* worker_end, bool decoupled, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t bound) { return random() % bound; };
  enum class State { kOpen, kForgotten, kEnded };
  struct Open {
    Taken taken;
    std::vector<State> states;
  };
  std::vector<Open> open;
  for (;;) {
    Reply reply;
    for (uint64_t responses = 1 + below(4); responses > 0 && !open.empty(); --responses) {
      const size_t index = below(open.size());
      Open& each = open[index];
      const size_t request = below(each.states.size());
      State& state = each.states[request];
      if (state == State::kEnded) continue;
      if (state == State::kOpen && below(100) == 0) state = State::kForgotten;
      if (state == State::kForgotten && !each.taken.is_cancelled(request)) continue;
      bool final = true;
      const bool is_untouched =
          std::all_of(each.states.begin(), each.states.end(), [](State s) { return s == State::kOpen; });
      if (is_untouched && !decoupled && reply.responses().responses.empty() && below(2) == 0) {
        SendResult(worker_end, each.taken, fake_worker::EchoOf(each.taken.batch));
        std::fill(each.states.begin(), each.states.end(), State::kEnded);
      } else if (each.taken.is_cancelled(request) || (decoupled && below(4) == 0)) {
        reply.End(each.taken, request);
      } else if (below(10) == 0) {
        reply.Fail(each.taken, request, "at random", final = below(2) == 0);
      } else {
        reply.Echo(each.taken, request, final = !decoupled || below(2) == 0);
      }
      if (final) state = State::kEnded;
      if (!std::all_of(each.states.begin(), each.states.end(), [](State s) { return s == State::kEnded; })) continue;
      worker_end->Release(each.taken);
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(index));
    }
    if (below(500) == 0) worker_end->HangUp();
    const bool idle = reply.responses().responses.empty();
    if (!idle) worker_end->Send(reply);
    if (!idle && below(3) > 0) continue;
    if (auto taken = worker_end->Take(open.empty() ? -1 : 1)) {
      const auto count = static_cast<size_t>(taken->batch.request_count);
      open.push_back({std::move(*taken), std::vector<State>(count, State::kOpen)});
    } else if (worker_end->gone()) {
      return;
    }
  }
}

void InstancesRunSideBySide() {
  constexpr int kInstances = 4;
  constexpr int kBatches = 400;
  Trimmer trimmer;
  pytriton::AllModelMetrics metrics;
  pytriton::ServiceThread services([](const auto&) {});
  std::atomic<int64_t> served{0};
  std::atomic<int64_t> cancelled{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < kInstances; ++number) {
    threads.emplace_back([&trimmer, &metrics, &services, &served, &cancelled, number] {
      const bool decoupled = number % 2 == 0;
      std::mt19937_64 random(100 + number);
      std::atomic<uint64_t> sessions{0};
      Model model("instance-" + std::to_string(number), 3, true, {1 + number * 3, decoupled},
                  [&](WorkerEnd* worker_end) { Improvise(worker_end, decoupled, 1000 * number + ++sessions); });
      std::vector<std::pair<Requests, std::vector<bool>>> batches;
      pytriton::WorkerPool workers;
      std::atomic<int> instance_count{0};
      {
        pytriton::Instance instance(
            model.instance(), [&trimmer](const auto& arena, const auto&) { trimmer.Watch(arena); }, &services, &metrics,
            &workers, &instance_count);
        for (int i = 0; i < kBatches; ++i) {
          auto& [batch, good] = batches.emplace_back();
          std::vector<TRITONBACKEND_Request*> requests;
          for (uint64_t n = 0; n <= random() % 5; ++n) {
            auto [sent, is_good] = RandomRequest(model, &random);
            requests.push_back(&sent->request);
            good.push_back(is_good);
            batch.push_back(std::move(sent));
            batch.back()->request.timeout_us = 1000 + random() % 50000;
          }
          instance.Execute(requests.data(), static_cast<uint32_t>(requests.size()));
          trimmer.Batch();
          Sent& any = *batches[random() % batches.size()].first[0];
          if (random() % 4 == 0) any.request.cancelled = true;
        }
        for (size_t i = 0; i + 5 < batches.size(); ++i) Model::Wait(batches[i].first);
      }
      for (const auto& [batch, good] : batches) {
        CHECK(Model::IsDone(batch));
        for (size_t n = 0; n < batch.size(); ++n) {
          const Sent& sent = *batch[n];
          if (!sent.request.failed) {
            CHECK(good[n] && (decoupled || sent.request.responses.size() == 1));
            Model::CheckEchoed(sent, sent.request.responses.size());
            ++served;
            continue;
          }
          const std::string& error = sent.request.error;
          const bool late = Contains(error, "was cancelled") || Contains(error, "timeout has passed");
          if (late) ++cancelled;
          CHECK(late || Contains(error, "at random") || Contains(error, "gone") ||
                (!good[n] && Contains(error, "does not match its shape")));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(served > kInstances * kBatches / 2);
  CHECK(cancelled > 0);
}

const Behaviors kBehaviors = {
    {"mutated_answers_never_crash", MutatedAnswersNeverCrash},
    {"instances_run_side_by_side", InstancesRunSideBySide},
};

}  // namespace

}  // namespace data_path

int main(int argc, char** argv) { return data_path::Run(data_path::kBehaviors, argc, argv); }
