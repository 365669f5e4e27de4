#pragma once

#include <set>
#include <string>

#include "runtime/base/dtype.h"

namespace zs::test {

using Names = std::set<std::string>;

/// Runs the general ops and their gradients, each alone, under an audit; fails where one does what it does not declare,
/// and gives their names.
Names audit_general_ops(DType dtype);
/// The same of weights that one model gets from another.
Names audit_copying();

}  // namespace zs::test
