// Gives the refusals of models their status over HTTP.
//
// The HTTP front end has the same status for several codes, and none for others. The text of a refusal begins with its
// status in words (`wire/request_status.py`), by which its response is recognized and corrected while it is written.
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <string_view>

#include "guard/interpose.h"
#include "triton/api.h"

namespace pytriton::guard {

namespace {

struct Refusal {
  TRITONSERVER_Error_Code code;
  std::string_view words;    // the beginning of its text
  std::string_view sent;     // the front end's status
  std::string_view correct;  // as long as that one: a reason may end with spaces
};

constexpr std::array<Refusal, 2> kRefusals = {{
    {TRITONSERVER_ERROR_ALREADY_EXISTS, "conflict: ", "400 Bad Request\r\n", "409 Conflict   \r\n"},
    {TRITONSERVER_ERROR_UNAVAILABLE, "too many requests: ", "503 Service Unavailable\r\n",
     "429 Too Many Requests  \r\n"},
}};
constexpr std::string_view kProtocol = "HTTP/1.";
constexpr size_t kProtocolSize = 9;  // with the minor version, the client's, and a space
constexpr std::string_view kBody = "\r\n\r\n{\"error\":\"";
constexpr size_t kMaxHead = 2048;  // of an error response: its headers, and the beginning of its text

static_assert(kRefusals[0].sent.size() == kRefusals[0].correct.size());
static_assert(kRefusals[1].sent.size() == kRefusals[1].correct.size());

bool BeginsWith(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

// Whether any model has refused a request in this way: otherwise, there is nothing to search for.
std::atomic<bool> has_refused = false;

void Note(TRITONSERVER_Error* error) {
  if (has_refused) return;
  const std::string_view text = PYTRITON_NEXT(TRITONSERVER_ErrorMessage)(error);
  const TRITONSERVER_Error_Code code = PYTRITON_NEXT(TRITONSERVER_ErrorCode)(error);
  const bool is_refusal = std::any_of(kRefusals.begin(), kRefusals.end(), [&](const Refusal& refusal) {
    return code == refusal.code && BeginsWith(text, refusal.words);
  });
  if (is_refusal) has_refused = true;
}

// Corrects the status of the bytes to write, if they are a response with a refusal.
void Correct(const iovec* parts, int count) {
  const std::string_view first(static_cast<const char*>(parts[0].iov_base), parts[0].iov_len);
  if (!BeginsWith(first, kProtocol) || first.size() < kProtocolSize) return;
  const std::string_view status = first.substr(kProtocolSize);
  for (const Refusal& refusal : kRefusals) {
    if (!BeginsWith(status, refusal.sent)) continue;
    std::array<char, kMaxHead> buffer;
    size_t size = 0;
    for (int i = 0; i < count && size < kMaxHead; ++i) {
      const size_t length = std::min(parts[i].iov_len, kMaxHead - size);
      std::memcpy(buffer.data() + size, parts[i].iov_base, length);
      size += length;
    }
    const std::string_view head(buffer.data(), size);
    const size_t body = head.find(kBody);
    if (body == head.npos || !BeginsWith(head.substr(body + kBody.size()), refusal.words)) continue;
    std::memcpy(static_cast<char*>(parts[0].iov_base) + kProtocolSize, refusal.correct.data(), refusal.correct.size());
    return;
  }
}

}  // namespace

}  // namespace pytriton::guard

using namespace pytriton::guard;  // NOLINT: this file is a program's

extern "C" {

TRITONSERVER_Error* TRITONSERVER_InferenceResponseError(TRITONSERVER_InferenceResponse* response) {
  TRITONSERVER_Error* error = PYTRITON_NEXT(TRITONSERVER_InferenceResponseError)(response);
  if (error != nullptr && PYTRITON_CALLED_BY_PROGRAM()) Note(error);
  return error;
}

ssize_t writev(int fd, const iovec* parts, int count) {
  if (has_refused && count > 0 && PYTRITON_CALLED_BY_PROGRAM()) Correct(parts, count);
  return PYTRITON_NEXT(writev)(fd, parts, count);
}
}
