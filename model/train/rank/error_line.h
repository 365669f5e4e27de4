#pragma once

#include <string>
#include <string_view>

#include "runtime/base/check.h"

namespace zs {

/// The one line that a user sees: "train: error: what (where): what to do". At most 300 bytes: a long `where` loses its
/// beginning, a long `what` its end. Control characters are escaped. `place` ("rank 2 step 41") comes after `where` in
/// the parentheses.
std::string error_line(const Error& error, std::string_view place = {}, std::string_view program = "train");

}  // namespace zs
