// The end of a gRPC stream and its responses, in threads that lock their mutexes as the front end's do.
#include "guard/streams.h"

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "guard/interpose.h"
#include "guard/notifications.h"
#include "guard/program_symbols.h"

// Those of the sanitizer, if it has some.
void* pytriton::guard::NextDefinition(const char* name) { return dlsym(RTLD_DEFAULT, name); }

// gRPC's operation whose end is the notification of the end of a stream.
namespace grpc {

class ServerContextBase {
 public:
  class CompletionOp;
};

class ServerContextBase::CompletionOp {
 public:
  virtual ~CompletionOp() = default;
  virtual bool FinalizeResult(void** tag, bool* status);

  bool is_notification = true;
};

__attribute__((noinline)) bool ServerContextBase::CompletionOp::FinalizeResult(void** tag, bool* status) {
  *tag = this;
  *status = true;
  return is_notification;
}

}  // namespace grpc

// The front end's orders contradict each other.
extern "C" const char* __tsan_default_options() { return "detect_deadlocks=0"; }  // NOLINT: the sanitizer's name

namespace {

using namespace pytriton::guard;  // NOLINT: what is under test

constexpr int kRequests = 20'000;
constexpr int kResponders = 3;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::_Exit(1);
}

// A lock of the thread that handles streams.
class Lock {
 public:
  explicit Lock(std::recursive_mutex& mutex) : mutex_(mutex.native_handle()) { LockInStreamThread(mutex_); }
  ~Lock() { UnlockInStreamThread(mutex_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  pthread_mutex_t* const mutex_;
};

struct Stream {
  std::recursive_mutex stream;
  std::recursive_mutex request;
  std::atomic<bool> has_ended{false};
  std::atomic<int> responses{0};
};

// As the front end: the check and the response are not one step.
void Respond(Stream* stream) {
  const StreamResponse given;
  const bool has_ended = stream->has_ended;
  std::this_thread::yield();
  const std::lock_guard<std::recursive_mutex> first(stream->stream);
  const std::lock_guard<std::recursive_mutex> second(stream->request);
  if (has_ended != stream->has_ended) Fail("a stream ended while a response was given to it");
  ++stream->responses;
}

void Read(Stream* stream) {
  ExpectStreamMutex();
  const Lock lock(stream->stream);
}

void End(Stream* stream) {
  const Lock first(stream->request);
  const Lock second(stream->stream);
  stream->has_ended = !stream->has_ended;
}

void WriteNext(Stream* stream) {
  const Lock first(stream->stream);
  const Lock second(stream->request);
}

void StreamsEndBetweenResponses() {
  Stream stream;
  std::atomic<bool> stops{false};
  std::vector<std::thread> responders;
  for (int i = 0; i < kResponders; ++i) {
    responders.emplace_back([&] {
      while (!stops) Respond(&stream);
    });
  }
  for (int i = 0; i < kRequests; ++i) {
    Read(&stream);
    WriteNext(&stream);
    End(&stream);
  }
  stops = true;
  for (std::thread& responder : responders) responder.join();
  if (stream.responses == 0) Fail("there were no responses");
}

// What is not the end of a stream does not wait for responses.
void ResponsesGoOnWhileAStreamGoesOn() {
  Stream stream;
  Read(&stream);
  std::atomic<bool> is_given{false};
  std::atomic<bool> stops{false};
  std::thread responder([&] {
    const StreamResponse given;
    is_given = true;
    while (!stops) std::this_thread::yield();
  });
  while (!is_given) std::this_thread::yield();
  WriteNext(&stream);
  stops = true;
  responder.join();
}

// A request that has one response may still be in use by the thread that gives it.
void NoResponseIsBeingGivenWhileAnEventOfAPlainRequestIsHandled() {
  Stream stream;
  Read(&stream);
  BeginPlainRequest();
  std::atomic<bool> is_in_use{false};
  std::atomic<bool> is_given{false};
  std::thread responder([&] {
    const StreamResponse given;
    is_in_use = true;
    is_given = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    is_in_use = false;
  });
  while (!is_given) std::this_thread::yield();
  {
    const Lock lock(stream.stream);
    if (is_in_use) Fail("an event was handled while a response was given");
  }
  responder.join();
  EndPlainRequest();
}

// A request may be where a stream was before.
void AMutexThatIsNoStreamsAnyLongerIsForgotten() {
  Stream stream;
  Stream next;
  Read(&stream);
  Read(&next);
  {
    const Lock first(next.stream);
    const Lock second(stream.stream);
  }
  std::atomic<bool> is_given{false};
  std::thread responder;
  {
    const Lock end(stream.stream);
    responder = std::thread([&] {
      const StreamResponse given;
      is_given = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (is_given) Fail("a response was given while its stream ended");
  }
  responder.join();
}

// As the front end: it notes the notification before it locks anything.
bool GetNotification(grpc::ServerContextBase::CompletionOp& operation) {
  void* tag = nullptr;
  bool status = false;
  const bool is_notification = operation.FinalizeResult(&tag, &status);
  if (tag != &operation || !status) Fail("a notification was changed");
  return is_notification;
}

void ResponsesWaitFromANotificationUntilItIsHandled() {
  Stream stream;
  Read(&stream);
  const auto operation = std::make_unique<grpc::ServerContextBase::CompletionOp>();
  if (!GetNotification(*operation)) Fail("a notification was lost");
  std::atomic<bool> is_given{false};
  std::thread responder([&] {
    const StreamResponse given;
    is_given = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  if (is_given) Fail("a response was given before a notification was handled");
  End(&stream);
  responder.join();
}

void ResponsesGoOnAfterAnOperationWithoutANotification() {
  const auto operation = std::make_unique<grpc::ServerContextBase::CompletionOp>();
  operation->is_notification = false;
  if (GetNotification(*operation)) Fail("there was a notification");
  std::thread([] { const StreamResponse given; }).join();
}

void OtherThreadsGetNotificationsWhileResponsesAreGiven() {
  const auto operation = std::make_unique<grpc::ServerContextBase::CompletionOp>();
  std::thread([&] {
    const StreamResponse given;
    std::thread([&] { GetNotification(*operation); }).join();
  }).join();
}

void SymbolsThatTheProgramLacksAreNotFound() {
  if (ProgramSymbol("main") == nullptr) Fail("the program's own function was not found");
  if (ProgramSymbol("mai") != nullptr || ProgramSymbol("_ZN4grpc5OtherE") != nullptr) Fail("no such symbol exists");
}

// Of a cached response, which the core gives while it gets the request.
void AResponseMayBeGivenByTheThreadThatHandlesStreams() {
  Stream stream;
  const StreamResponse given;
  const StreamResponse inner;
  const Lock first(stream.request);
  const Lock second(stream.stream);
}

}  // namespace

int main() {
  SymbolsThatTheProgramLacksAreNotFound();
  OtherThreadsGetNotificationsWhileResponsesAreGiven();
  BecomeStreamThread();
  if (!WatchNotifications()) Fail("gRPC's operation was not found");
  StreamsEndBetweenResponses();
  ResponsesGoOnWhileAStreamGoesOn();
  NoResponseIsBeingGivenWhileAnEventOfAPlainRequestIsHandled();
  AResponseMayBeGivenByTheThreadThatHandlesStreams();
  AMutexThatIsNoStreamsAnyLongerIsForgotten();
  ResponsesWaitFromANotificationUntilItIsHandled();
  ResponsesGoOnAfterAnOperationWithoutANotification();
  OtherThreadsGetNotificationsWhileResponsesAreGiven();
  std::puts("passed");
}
