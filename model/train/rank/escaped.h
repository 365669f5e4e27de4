#pragma once

#include <string>
#include <string_view>

namespace zs {

/// The text as it may go to a terminal: control characters (C0, DEL, and C1 as UTF-8) and bytes that are not UTF-8 are
/// spelled as \x1b.
std::string escaped(std::string_view text);

}  // namespace zs
