// The C++ half of what worker processes and their owner tell each other, and of reading JSON, for Python to call.
#include <cstdint>
#include <string>

#include "base/json.h"
#include "peer_codecs.h"
#include "return_text.h"
#include "transport/control_channel.h"

extern "C" {

// Writes an order whose texts are given in the order of its fields. Returns its size.
int64_t control_command(int64_t command, int64_t version, const char* const* texts, const int64_t* sizes, char* target,
                        int64_t capacity) {
  const auto text = [&](int i) { return std::string(texts[i], sizes[i]); };
  pytriton::MessageWriter writer;
  Encode(pytriton::CommandMessage{static_cast<pytriton::Command>(command), text(0), text(1), version, text(2), text(3),
                                  text(4), text(5), text(6), text(7)},
         &writer);
  return ReturnText(writer.ToString(), target, capacity);
}

// Reads a reply, and writes what it has read in the same way. Returns its size; or, when it is none, -1.
int64_t control_recode_reply(const char* frame, int64_t size, char* target, int64_t capacity) {
  try {
    const pytriton::CommandReply reply = pytriton::DecodeReply({frame, static_cast<size_t>(size)});
    pytriton::MessageWriter writer;
    for (const std::string& text : {reply.error, reply.detail, reply.config, std::string()}) writer.Text(text);
    for (int i = 0; i < 2; ++i) writer.Word(0);  // what processes of bound models say
    std::string bytes = writer.ToString();
    if (!reply.admission.socket.empty()) {
      pytriton::MessageWriter admission;
      Encode(reply.admission, &admission);
      bytes += admission.ToString();
    }
    return ReturnText(bytes, target, capacity);
  } catch (const pytriton::ProtocolError&) {
    return -1;
  }
}

// Reads JSON, and follows `path`, whose parts end with a newline: names of members, or numbers of items behind a `#`.
// Returns the size of the text there; or, when it is no JSON, -1.
int64_t json_text(const char* text, int64_t size, const char* path, char* target, int64_t capacity) {
  try {
    const pytriton::Json value = pytriton::Json::Parse({text, static_cast<size_t>(size)});
    const pytriton::Json* place = &value;
    const std::string parts = path;
    for (size_t start = 0; start < parts.size();) {
      const size_t end = parts.find('\n', start);
      const std::string part = parts.substr(start, end - start);
      place = part[0] == '#' ? &place->items().at(std::stoul(part.substr(1))) : &(*place)[part];
      start = end + 1;
    }
    return ReturnText(place->text(), target, capacity);
  } catch (const pytriton::JsonError&) {
    return -1;
  }
}
}
