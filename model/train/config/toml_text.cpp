#include "model/train/config/toml_text.h"

#include <fmt/format.h>

#include "model/data/utf8.h"

namespace zs {
namespace {

/// U+EF80 to U+EFFF in UTF-8: EE BE 80 to EE BF BF.
bool stands_for_byte(std::string_view character) {
  return character.size() == 3 && character[0] == '\xee' && (character[1] == '\xbe' || character[1] == '\xbf');
}

}  // namespace

std::string toml_string(std::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    const auto byte = static_cast<unsigned char>(text.front());
    const Utf8 next = next_utf8(text);
    const std::string_view bytes = text.substr(0, next.bytes);
    if (!next.is_valid ||
        stands_for_byte(bytes)) {  // a character that would read back as a byte is spelled byte by byte, too
      for (const char c : bytes) quoted += fmt::format("\\uEF{:02X}", static_cast<unsigned char>(c));
    } else if (byte == '"' || byte == '\\') {
      quoted += {'\\', text.front()};
    } else if (byte < 0x20 || byte == 0x7f) {
      quoted += fmt::format("\\u{:04X}", byte);
    } else {
      quoted += bytes;
    }
    text.remove_prefix(bytes.size());
  }
  return quoted + "\"";
}

std::string bytes_of_toml(std::string_view text) {
  std::string bytes;
  for (; !text.empty();) {
    const std::string_view character = text.substr(0, next_utf8(text).bytes);
    if (stands_for_byte(character)) {
      bytes += static_cast<char>((static_cast<unsigned char>(character[1]) << 6) |
                                 (static_cast<unsigned char>(character[2]) & 0x3f));
    } else {
      bytes += character;
    }
    text.remove_prefix(character.size());
  }
  return bytes;
}

}  // namespace zs
