// What the tests of service channels share: a worker's end of a channel, what models of the server do with its calls,
// and a look at what is left of both.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "data_path.h"
#include "fake_server.h"
#include "peer_codecs.h"
#include "services/service_thread.h"
#include "transport/arena.h"
#include "wire/service.h"

namespace services_test {

// A reply, and the outputs' bytes.
struct Got {
  pytriton::Notification notification;
  pytriton::InferenceReplyMessage reply;
  std::vector<std::string> data;
};

// A worker's end of a channel. For one thread.
class ServiceClient {
 public:
  explicit ServiceClient(pytriton::ServiceThread* services, bool open = true, const std::string& model = "client");

  void Open(int64_t version = pytriton::kProtocolVersion);
  bool opened() const { return opened_; }
  pytriton::ServiceChannel* channel() { return channel_.get(); }
  pytriton::Arena& arena() { return arena_; }

  bool Notify(const pytriton::Notification& notification, int fd = -1);

  template <typename Message>
  int64_t Send(pytriton::ServiceNotification kind, const Message& message, const std::string& data = "") {
    pytriton::MessageWriter writer;
    Encode(message, &writer);
    const auto size = writer.head_size() + static_cast<int64_t>(data.size());
    const pytriton::Block block = arena_.Allocate(size);
    writer.CopyTo(block.data);
    std::memcpy(block.data + writer.head_size(), data.data(), data.size());
    CHECK(Notify({static_cast<int64_t>(kind), ++last_, block.offset, size}));
    return last_;
  }

  // A call with one input of bytes as numbers.
  int64_t Call(const std::string& model, const std::string& data, pytriton::InferenceCallMessage call = {});
  void Cancel(int64_t number);
  // Shows what was sent to an instance that polls; returns whether there is one.
  bool ShowToPolling();

  // The next notification; nothing when the channel has ended.
  std::optional<pytriton::Notification> Hear(pytriton::FileDescriptor* file = nullptr);
  // The next reply, whose blocks are given back.
  Got Take();
  Got Take(const std::optional<pytriton::Notification>& notification);
  // Whether the block that starts at `offset` is still this worker's.
  bool Has(int64_t offset) const;
  pytriton::InferenceReplyMessage Read(const pytriton::Notification& notification) const;

  void HangUp();
  // As the instance ends.
  void Retire() { channel_.reset(); }

 private:
  pytriton::FileDescriptor socket_;
  std::shared_ptr<pytriton::ServiceChannel> channel_;
  pytriton::Arena arena_{int64_t{1} << 30};
  pytriton::PeerArena peer_;
  int64_t poll_flag_ = 0;  // its offset
  bool opened_ = false;
  int64_t last_ = 0;
};

// Has `CheckNothingIsLeft` look at an arena of the backend's side.
void Keep(const std::shared_ptr<pytriton::Arena>& arena);

void CheckNothingIsLeft(ServiceClient* client);

// Runs as `data_path::Run` does, and lets go of the arenas.
int Run(const data_path::Behaviors& behaviors, int argc, char** argv);

fake_server::Output EchoOf(TRITONSERVER_InferenceRequest* request);
void Echo(TRITONSERVER_InferenceRequest* request);

// Keeps requests for the test.
class Held {
 public:
  explicit Held(const std::string& model);

  TRITONSERVER_InferenceRequest* Take();

 private:
  std::mutex mutex_;
  std::vector<TRITONSERVER_InferenceRequest*> requests_;
};

}  // namespace services_test
