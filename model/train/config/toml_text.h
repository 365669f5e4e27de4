#pragma once

#include <string>
#include <string_view>

namespace zs {

/// A TOML string of any bytes. TOML is UTF-8, and names of files need not be: a byte that is not becomes a character of
/// the private use area, U+EF80 for 0x80 to U+EFFF for 0xff.
std::string toml_string(std::string_view text);
/// The bytes that such a string, as TOML reads it, stands for.
std::string bytes_of_toml(std::string_view text);

}  // namespace zs
