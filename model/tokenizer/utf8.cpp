#include "model/tokenizer/utf8.h"

#include <array>
#include <cstring>

namespace zs {
namespace {

/// Bytes of the valid character at `at`, or 0.
std::size_t valid_length(std::string_view text, std::size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  const std::size_t length = utf8_length(text[at]);
  if (lead >= 0x80 && (lead < 0xc2 || lead > 0xf4)) return 0;
  if (text.size() - at < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if (!is_utf8_continuation(text[at + i])) return 0;
  const char32_t code_point = utf8_at(text, at);
  if (length == 3 && (code_point < 0x800 || (code_point >= 0xd800 && code_point < 0xe000))) return 0;
  return length == 4 && (code_point < 0x10000 || code_point > 0x10ffff) ? 0 : length;
}

bool is_printable(int byte) { return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae; }

struct Alphabet {
  std::array<char32_t, 256> characters{};
  std::array<std::int16_t, 0x144> bytes{};

  constexpr Alphabet() = default;
  static Alphabet make() {
    Alphabet made;
    made.bytes.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const char32_t character = is_printable(byte) ? static_cast<char32_t>(byte) : next++;
      made.characters[static_cast<std::size_t>(byte)] = character;
      made.bytes[character] = static_cast<std::int16_t>(byte);
    }
    return made;
  }
};

const Alphabet& alphabet() {
  static const Alphabet made = Alphabet::make();
  return made;
}

}  // namespace

std::size_t find_invalid_utf8(std::string_view text) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080;
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t eight = 0;
    if (text.size() - at >= 8) {
      std::memcpy(&eight, text.data() + at, 8);
      if ((eight & kHighBits) == 0) {
        at += 8;
        continue;
      }
    }
    const std::size_t length = valid_length(text, at);
    if (length == 0) return at;
    at += length;
  }
  return kValidUtf8;
}

void append_utf8(char32_t code_point, std::string& out) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
    return;
  }
  if (code_point < 0x800) {
    put(0xc0 | code_point >> 6);
  } else {
    if (code_point < 0x10000) {
      put(0xe0 | code_point >> 12);
    } else {
      put(0xf0 | code_point >> 18);
      put(0x80 | (code_point >> 12 & 0x3f));
    }
    put(0x80 | (code_point >> 6 & 0x3f));
  }
  put(0x80 | (code_point & 0x3f));
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == 0x20 || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
         c == 0x202f || c == 0x205f || c == 0x3000;
}

std::size_t skip_space(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size() && is_white_space(utf8_at(text, at))) at += utf8_length(text[at]);
  return at;
}

std::size_t space_at_end(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    std::size_t begin = end - 1;
    while (begin > 0 && is_utf8_continuation(text[begin])) --begin;
    if (!is_white_space(utf8_at(text, begin))) break;
    end = begin;
  }
  return end;
}

char32_t byte_character(unsigned char byte) { return alphabet().characters[byte]; }

int character_byte(char32_t code_point) {
  const auto& bytes = alphabet().bytes;
  return code_point < bytes.size() ? bytes[code_point] : -1;
}

}  // namespace zs
