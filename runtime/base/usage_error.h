#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "runtime/base/check.h"

namespace zs {

/// A call of the library that cannot be done as things stand: a mistake of the program that makes it, not of zshard. It
/// says what was called, on what, and what to do instead; the call has changed nothing.
class UsageError : public Error {
 public:
  explicit UsageError(std::string what_happened, std::string what_to_do = {}, std::string where = {})
      : Error(ExitCode::usage, std::move(what_happened), std::move(where), std::move(what_to_do)) {}
};

}  // namespace zs

/// Throws a UsageError with this text unless the condition holds: a check of what a caller gave.
#define ZS_REQUIRE(condition, ...)                        \
  do {                                                    \
    if (!(condition)) [[unlikely]]                        \
      throw ::zs::UsageError(::fmt::format(__VA_ARGS__)); \
  } while (false)
