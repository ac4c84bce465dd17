#include "base/json.h"

#include <cctype>
#include <cstdlib>

namespace pytriton {

class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  Json Read() {
    Json value = Value(0);
    if (Peek() != '\0') Fail();
    return value;
  }

 private:
  static constexpr int kDeepest = 100;

  Json Value(int depth) {
    if (depth > kDeepest) Fail();
    Json value;
    if (Take('{')) {
      while (!Take('}')) {
        if (!value.members_.empty()) Expect(',');
        if (Peek() != '"') Fail();
        std::string name = String();
        Expect(':');
        value.members_.emplace_back(std::move(name), Value(depth + 1));
      }
    } else if (Take('[')) {
      while (!Take(']')) {
        if (!value.items_.empty()) Expect(',');
        value.items_.push_back(Value(depth + 1));
      }
    } else if (Peek() == '"') {
      value.text_ = String();
    } else {
      while (position_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[position_])) != 0 ||
                                          std::string_view("+-.").find(text_[position_]) != std::string_view::npos)) {
        value.text_ += text_[position_++];
      }
      if (value.text_.empty()) Fail();
    }
    return value;
  }

  std::string String() {
    Expect('"');
    std::string value;
    while (true) {
      const char each = Next();
      if (each == '"') return value;
      if (each == '\\') {
        Escape(&value);
      } else {
        value += each;
      }
    }
  }

  void Escape(std::string* value) {
    const char each = Next();
    const size_t control = std::string_view("bfnrt").find(each);
    if (control != std::string_view::npos) {
      *value += "\b\f\n\r\t"[control];
    } else if (each == 'u') {
      EscapedCharacter(value);
    } else {
      *value += each;
    }
  }

  // A character beyond the first 65,536 has two escapes, its surrogates; either may also occur alone.
  void EscapedCharacter(std::string* value) {
    uint32_t code = Hex();
    while (code >= 0xD800 && code < 0xDC00 && text_.substr(position_, 2) == "\\u") {
      position_ += 2;
      const uint32_t next = Hex();
      if (next >= 0xDC00 && next < 0xE000)
        return AppendUtf8(0x10000 + ((code - 0xD800) << 10) + (next - 0xDC00), value);
      AppendUtf8(code, value);
      code = next;
    }
    AppendUtf8(code, value);
  }

  uint32_t Hex() {
    std::string digits;
    for (int i = 0; i < 4; ++i) {
      digits += Next();
      if (std::isxdigit(static_cast<unsigned char>(digits.back())) == 0) Fail();
    }
    return static_cast<uint32_t>(std::strtoul(digits.c_str(), nullptr, 16));
  }

  static void AppendUtf8(uint32_t code, std::string* value) {
    const auto tail = [&](int shift) { *value += static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
    if (code < 0x80) {
      *value += static_cast<char>(code);
    } else if (code < 0x800) {
      *value += static_cast<char>(0xC0 | (code >> 6));
      tail(0);
    } else if (code < 0x10000) {
      *value += static_cast<char>(0xE0 | (code >> 12));
      tail(6);
      tail(0);
    } else {
      *value += static_cast<char>(0xF0 | (code >> 18));
      tail(12);
      tail(6);
      tail(0);
    }
  }

  // The next character that is not white space, or 0 at the end.
  char Peek() {
    while (position_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[position_])) != 0) ++position_;
    return position_ < text_.size() ? text_[position_] : '\0';
  }

  char Next() {
    if (position_ >= text_.size()) Fail();
    return text_[position_++];
  }

  bool Take(char wanted) {
    if (Peek() != wanted) return false;
    ++position_;
    return true;
  }

  void Expect(char wanted) {
    if (!Take(wanted)) Fail();
  }

  [[noreturn]] void Fail() const { throw JsonError("there is no JSON at character " + std::to_string(position_)); }

  const std::string_view text_;
  size_t position_ = 0;
};

Json Json::Parse(std::string_view text) { return JsonReader(text).Read(); }

const Json& Json::operator[](std::string_view name) const {
  static const Json nothing;
  for (const auto& [key, value] : members_) {
    if (key == name) return value;
  }
  return nothing;
}

}  // namespace pytriton
