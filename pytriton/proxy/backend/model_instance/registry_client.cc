#include "model_instance/registry_client.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace pytriton {

namespace {

// libzmq, opened at run time: the controller names the same library that its Python uses (PYTRITON_LIBZMQ), so both
// ends have the same version and nothing needs to be installed in addition to the server. Names and values follow zmq.h
// of libzmq 4.x.
class ZeroMq {
 public:
  static const ZeroMq& Get() {
    static const ZeroMq library;
    return library;
  }

  static constexpr int kRequestSocket = 3;  // ZMQ_REQ
  static constexpr int kLinger = 17;        // ZMQ_LINGER
  static constexpr int kReceiveMore = 13;   // ZMQ_RCVMORE
  static constexpr int kReceiveTimeout = 27;
  static constexpr int kSendTimeout = 28;
  static constexpr int kSendMore = 2;  // ZMQ_SNDMORE

  // A message, `zmq_msg_t`.
  struct Message {
    alignas(void*) unsigned char opaque[64];
  };

  void* (*ctx_new)();
  int (*ctx_term)(void*);
  void* (*socket)(void*, int);
  int (*close)(void*);
  int (*connect)(void*, const char*);
  int (*setsockopt)(void*, int, const void*, size_t);
  int (*getsockopt)(void*, int, void*, size_t*);
  int (*send)(void*, const void*, size_t, int);
  int (*msg_init)(Message*);
  int (*msg_recv)(Message*, void*, int);
  size_t (*msg_size)(const Message*);
  void* (*msg_data)(Message*);
  int (*msg_close)(Message*);
  int (*error)();
  const char* (*strerror)(int);

 private:
  ZeroMq() {
    const char* path = std::getenv("PYTRITON_LIBZMQ");
    if (path == nullptr) path = "libzmq.so.5";
    // Never closed: ZeroMQ's threads may briefly outlive the last registration.
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* reason = dlerror();
      throw RegistrationError(std::string("cannot open ZeroMQ (PYTRITON_LIBZMQ=") + path + "): " + reason);
    }
    Load(library, "zmq_ctx_new", &ctx_new);
    Load(library, "zmq_ctx_term", &ctx_term);
    Load(library, "zmq_socket", &socket);
    Load(library, "zmq_close", &close);
    Load(library, "zmq_connect", &connect);
    Load(library, "zmq_setsockopt", &setsockopt);
    Load(library, "zmq_getsockopt", &getsockopt);
    Load(library, "zmq_send", &send);
    Load(library, "zmq_msg_init", &msg_init);
    Load(library, "zmq_msg_recv", &msg_recv);
    Load(library, "zmq_msg_size", &msg_size);
    Load(library, "zmq_msg_data", &msg_data);
    Load(library, "zmq_msg_close", &msg_close);
    Load(library, "zmq_errno", &error);
    Load(library, "zmq_strerror", &strerror);
  }

  template <typename Function>
  static void Load(void* library, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    if (*function == nullptr) throw RegistrationError(std::string("ZeroMQ lacks the function ") + name);
  }
};

constexpr int kAttemptMs = 2000;

// There was no reply in time.
class NoReply : public RegistrationError {
 public:
  using RegistrationError::RegistrationError;
};

// The context of all current calls: it has its own threads, which take longer to start than a call.
std::shared_ptr<void> CurrentContext() {
  static std::mutex mutex;
  static std::weak_ptr<void> current;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<void> context = current.lock();
  if (context == nullptr) {
    const ZeroMq& zmq = ZeroMq::Get();
    context = std::shared_ptr<void>(zmq.ctx_new(), zmq.ctx_term);
    current = context;
  }
  return context;
}

std::vector<std::string> CallOnce(const std::string& endpoint, const std::vector<std::string>& request,
                                  int timeout_ms) {
  const ZeroMq& zmq = ZeroMq::Get();
  const std::shared_ptr<void> context = CurrentContext();
  const std::unique_ptr<void, int (*)(void*)> socket(zmq.socket(context.get(), ZeroMq::kRequestSocket), zmq.close);
  const auto fail = [&](const char* what) {
    throw RegistrationError(std::string(what) + " the registry at " + endpoint + ": " + zmq.strerror(zmq.error()));
  };
  const int no_linger = 0;
  zmq.setsockopt(socket.get(), ZeroMq::kLinger, &no_linger, sizeof(no_linger));
  zmq.setsockopt(socket.get(), ZeroMq::kReceiveTimeout, &timeout_ms, sizeof(timeout_ms));
  zmq.setsockopt(socket.get(), ZeroMq::kSendTimeout, &timeout_ms, sizeof(timeout_ms));
  if (zmq.connect(socket.get(), endpoint.c_str()) != 0) fail("cannot connect to");
  for (size_t i = 0; i < request.size(); ++i) {
    const int flags = i + 1 < request.size() ? ZeroMq::kSendMore : 0;
    if (zmq.send(socket.get(), request[i].data(), request[i].size(), flags) < 0) fail("cannot send a request to");
  }
  std::vector<std::string> response;
  int more = 1;
  while (more != 0) {
    ZeroMq::Message frame;
    zmq.msg_init(&frame);
    const std::unique_ptr<ZeroMq::Message, int (*)(ZeroMq::Message*)> closer(&frame, zmq.msg_close);
    if (zmq.msg_recv(&frame, socket.get(), 0) < 0) {
      throw NoReply("no reply from the registry at " + endpoint + ": " + zmq.strerror(zmq.error()));
    }
    response.emplace_back(static_cast<const char*>(zmq.msg_data(&frame)), zmq.msg_size(&frame));
    size_t more_size = sizeof(more);
    zmq.getsockopt(socket.get(), ZeroMq::kReceiveMore, &more, &more_size);
  }
  return response;
}

// Workaround for ZeroMQ 4.3: a request may get lost while peers disconnect that sent data other than ZeroMQ's frames.
std::vector<std::string> Call(const std::string& endpoint, const std::vector<std::string>& request, int timeout_ms) {
  for (;; timeout_ms -= kAttemptMs) {
    try {
      return CallOnce(endpoint, request, std::min(timeout_ms, kAttemptMs));
    } catch (const NoReply&) {
      if (timeout_ms <= kAttemptMs) throw;
    }
  }
}

}  // namespace

WorkerFile WorkerFile::Read(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    throw RegistrationError("cannot read " + path + ": models of the backend 'pytriton' are written by the library");
  }
  WorkerFile result;
  std::string line;
  while (std::getline(file, line)) {
    const size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    const std::string key = line.substr(0, equals);
    if (key == "registry") result.registry = line.substr(equals + 1);
    if (key == "controller") result.controller = line.substr(equals + 1);
    if (key == "binding") result.binding = line.substr(equals + 1);
    if (key == "cached_output") result.cached_output = line.substr(equals + 1);
  }
  if (result.registry.empty() || result.binding.empty()) {
    throw RegistrationError(path + " does not name both a registry and a binding");
  }
  return result;
}

RegistrationReply Register(const std::string& registry, const RegistrationMessage& registration, int timeout_ms) {
  MessageWriter writer;
  Encode(registration, &writer);
  const std::vector<std::string> response =
      Call(registry, {"pytriton", std::to_string(kProtocolVersion), writer.ToString()}, timeout_ms);
  if (response.size() < 2) throw RegistrationError("the reply of the registry at " + registry + " is malformed");
  if (response[0] == "waiting") return {std::nullopt, response[1], std::nullopt};
  if (response[0] == "failed") throw WorkerUnavailable(response[1]);
  if (response[0] != "admitted") throw RegistrationError(response[1]);
  MessageReader reader(response[1].data(), static_cast<int64_t>(response[1].size()));
  RegistrationReply admitted{DecodeAdmission(&reader), "", std::nullopt};
  if (response.size() > 2) admitted.restart_count = std::atoll(response[2].c_str());
  return admitted;
}

}  // namespace pytriton
