#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <type_traits>

#include "model/data/utf8.h"
#include "runtime/base/standard_streams.h"

namespace zs {

/// A text that goes to a terminal as it is: lines that the program has made, or a model's text.
struct AsIs {
  std::string_view text;
};

/// Escapes a text that others chose, a path or a name; any other value stays.
template <class T>
decltype(auto) printed(const T& value) {
  if constexpr (std::is_same_v<T, AsIs>)
    return std::string_view(value.text);
  else if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, std::string_view>)
    return escaped(value);
  else
    return (value);
}

/// Formats, then writes to standard output: each text among `args` is escaped, but for AsIs.
template <class... Args>
void print_to_stdout(fmt::format_string<Args...> format, const Args&... args) {
  write_to_stdout(fmt::format(fmt::runtime(fmt::string_view(format)), printed(args)...));
}

}  // namespace zs

template <>
struct fmt::formatter<zs::AsIs> : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(const zs::AsIs& value, Context& context) const {
    return fmt::formatter<std::string_view>::format(value.text, context);
  }
};
