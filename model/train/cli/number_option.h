#pragma once

#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <string>

#include "runtime/base/parse_integer.h"

namespace zs {

/// For CLI::Option::check(): an integer in decimal that lies there. CLI11 by itself takes what does not fit into 64
/// bits for the nearest that does.
inline CLI::Validator integer_from(std::int64_t least, std::int64_t most) {
  const std::string wanted = fmt::format("an integer from {} to {}", least, most);
  const auto check = [=](std::string& text) {
    const auto value = parse_integer<std::int64_t>(text);
    return value && *value >= least && *value <= most ? std::string() : fmt::format("{} is not {}", text, wanted);
  };
  return CLI::Validator(check, "");
}

/// Checks that an option is a number there, which NaN is not.
inline CLI::Validator number_from(double least, double most) {
  const std::string wanted = fmt::format("a number from {} to {}", least, most);
  const auto check = [=](std::string& text) {
    double value = 0;
    const char* const limit = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), limit, value);
    const bool is_good = error == std::errc() && stop == limit && value >= least && value <= most;
    return is_good ? std::string() : fmt::format("{} is not {}", text, wanted);
  };
  return CLI::Validator(check, "");
}

}  // namespace zs
