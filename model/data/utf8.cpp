#include "model/data/utf8.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>

namespace zs {
namespace {

/// Characters of so many bytes: the bits that mark their first byte, and the first one that needs as many.
struct Form {
  std::uint32_t mask, mark, first;
  std::size_t bytes;
};
constexpr std::array kForms = {Form{0x80, 0x00, 0, 1}, Form{0xe0, 0xc0, 0x80, 2}, Form{0xf0, 0xe0, 0x800, 3},
                               Form{0xf8, 0xf0, 0x10000, 4}};

Utf8 read(std::string_view text, const Form& form) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  std::uint32_t code = byte(0) & ~form.mask & 0xff;
  for (std::size_t i = 1; i < form.bytes; ++i) {
    if (i == text.size()) return {.bytes = text.size(), .is_cut = true};
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fU);
  }
  const bool is_surrogate = code >= 0xd800 && code < 0xe000;
  if (code < form.first || is_surrogate || code > 0x10ffff) return {};
  return {.bytes = form.bytes, .is_valid = true, .is_control = code < 0x20 || (code >= 0x7f && code < 0xa0)};
}

}  // namespace

Utf8 next_utf8(std::string_view text) {
  for (const Form& form : kForms)
    if ((static_cast<unsigned char>(text.front()) & form.mask) == form.mark) return read(text, form);
  return {};
}

std::string printable(std::string_view bytes, bool is_utf8) {
  std::string text;
  for (; !bytes.empty();) {
    const Utf8 next = next_utf8(bytes);
    const bool is_layout = bytes.front() == '\n' || bytes.front() == '\t';
    const bool is_shown = is_layout || (next.is_valid && !next.is_control && (is_utf8 || next.bytes == 1));
    text += is_shown ? std::string(bytes.substr(0, next.bytes)) : std::string(next.is_valid ? 1 : next.bytes, '?');
    bytes.remove_prefix(next.bytes);
  }
  return text;
}

std::string escaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8 next = next_utf8(text);
    const std::string_view bytes = text.substr(0, next.bytes);
    if (next.is_valid && !next.is_control) {
      out += bytes;
    } else {
      for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
    text.remove_prefix(bytes.size());
  }
  return out;
}

bool has_control_characters(std::string_view text) {
  while (!text.empty()) {
    const Utf8 next = next_utf8(text);
    if (next.is_control) return true;
    text.remove_prefix(next.bytes);
  }
  return false;
}

}  // namespace zs
