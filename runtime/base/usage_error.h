#pragma once

#include <string>
#include <utility>

#include "runtime/base/check.h"

namespace zs {

/// A call of the library that cannot be done as things stand: a mistake of the program that makes it, not of zshard. It
/// says what was called, on what, and what to do instead; the call has changed nothing.
class UsageError : public Error {
 public:
  explicit UsageError(std::string what_happened, std::string what_to_do = {})
      : Error(ExitCode::usage, std::move(what_happened), {}, std::move(what_to_do)) {}
};

}  // namespace zs
