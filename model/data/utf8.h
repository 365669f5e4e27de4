#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace zs {

/// Begin of a text as UTF-8 (RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF).
struct Utf8 {
  std::size_t bytes = 1;    ///< to go on after; 1 where it is no character
  bool is_valid = false;    ///< a whole character
  bool is_control = false;  ///< U+0000 to U+001F, U+007F to U+009F
  bool is_cut = false;      ///< the text ends within it
};
/// Begin of a text that is not empty.
Utf8 next_utf8(std::string_view text);

/// Bytes as text for a terminal: characters as they are, or ASCII alone; a '?' for each control character but line end
/// and tab, and for each byte that is of no character.
std::string printable(std::string_view bytes, bool is_utf8 = true);

/// Text for a line of the program's own: control characters (C0, DEL, and C1 as UTF-8) and bytes that are not
/// UTF-8 are spelled as \x1b.
std::string escaped(std::string_view text);
/// Control characters are C0, DEL and C1.
bool has_control_characters(std::string_view text);

}  // namespace zs
