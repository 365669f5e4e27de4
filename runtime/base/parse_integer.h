#pragma once

#include <charconv>
#include <concepts>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace zs {

/// The number that the text is, from its first letter to its last, in decimal; nothing for any other text, or one that
/// does not fit.
template <std::integral T>
std::optional<T> parse_integer(std::string_view text) {
  T value = 0;
  const char* const limit = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), limit, value);
  return error == std::errc() && stop == limit ? std::optional(value) : std::nullopt;
}

/// Number that an environment variable holds, where it is set and a number.
template <std::integral T>
std::optional<T> number_in_environment(const char* variable) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? parse_integer<T>(text) : std::nullopt;
}

}  // namespace zs
