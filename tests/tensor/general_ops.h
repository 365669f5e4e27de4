#pragma once

#include "tests/tensor/gradient_check.h"

namespace zs::test {

struct NamedOp {
  std::string name;
  OpUnderTest op;
};
/// The general ops (runtime/tensor/arithmetic.h, layout.h, reduction.h) with what they compute, in double precision.
std::vector<NamedOp> general_ops();

}  // namespace zs::test
