#pragma once

#include <string>
#include <string_view>

#include "runtime/base/check.h"

namespace zs {

/// Name by which the user calls this program: "zshard" as it is installed, "train" in a build folder and elsewhere.
std::string_view program_name();

/// The one line that a user sees: "train: error: what (where): what to do". At most 300 bytes: a long `where` loses its
/// beginning, a long `what` its end. Control characters are escaped. `place` ("rank 2 step 41") comes after `where` in
/// the parentheses.
std::string error_line(const Error& error, std::string_view place = {}, std::string_view program = program_name());

/// Prints a line to standard error, "train: note: ..." and "train: warning: ...", with control characters escaped.
void print_note(const std::string& text);
void print_warning(const std::string& text);

}  // namespace zs
