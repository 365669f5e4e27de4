#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace zs {

inline constexpr std::size_t kValidUtf8 = static_cast<std::size_t>(-1);

/// The offset of the first byte that is not part of a valid character (no surrogates, nothing overlong), or kValidUtf8.
std::size_t find_invalid_utf8(std::string_view text);

/// Bytes of the character that begins with `lead`. The text is valid.
inline std::size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

inline bool is_utf8_continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

/// The code point of the character at `at`. The text is valid.
inline char32_t utf8_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return lead;
  if (lead < 0xe0) return (lead & 0x1f) << 6 | (byte(1) & 0x3f);
  if (lead < 0xf0) return (lead & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
  return (lead & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
}

void append_utf8(char32_t code_point, std::string& out);

/// True if Unicode calls it White_Space.
bool is_white_space(char32_t code_point);

/// End of the white space that begins `text`; and, below, begin of the white space that ends it.
std::size_t skip_space(std::string_view text);
std::size_t space_at_end(std::string_view text);

/// GPT-2's alphabet: the 256 bytes as printable characters. Byte 0x20 is U+0120.
char32_t byte_character(unsigned char byte);
/// The byte of a character of the alphabet, or -1.
int character_byte(char32_t code_point);

}  // namespace zs
