#pragma once

#include <string>

#include "runtime/base/check.h"

namespace zs {

/// Exit code 65: data missing or invalid.
inline Error bad_data(const std::string& what, const std::string& where, const std::string& todo) {
  return {ExitCode::dataset, what, where, todo};
}

/// Advice about documents without a target.
inline constexpr const char* kNoTargets =
    "a document's first token and its prompt are none: name documents that have text behind those";

}  // namespace zs
