#pragma once

#include <string>

#include "runtime/base/check.h"

namespace zs {

/// Exit code 65: data missing or invalid.
inline Error bad_data(const std::string& what, const std::string& where, const std::string& todo) {
  return {ExitCode::dataset, what, where, todo};
}

}  // namespace zs
