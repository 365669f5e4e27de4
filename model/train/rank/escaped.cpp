#include "model/train/rank/escaped.h"

#include <fmt/format.h>

#include "model/data/utf8.h"

namespace zs {

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

}  // namespace zs
