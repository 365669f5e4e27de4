#pragma once

#include "runtime/tensor/tensor.h"

namespace zs {

// Arithmetic of i32 tensors, exact, broadcast as that of floats is; no gradients. What leaves i32 wraps around. add,
// sub, mul, neg, where, comparisons and their operators take i32 too.

/// a / b, rounded towards minus infinity; a divisor of 0 is an error of the next synchronize (with a GPU: its work
/// ends).
Tensor floor_div(const Tensor& a, const Tensor& b);
Tensor floor_div(const Tensor& a, std::int32_t b);
/// a - b floor_div(a, b): of b's sign.
Tensor remainder(const Tensor& a, const Tensor& b);
Tensor remainder(const Tensor& a, std::int32_t b);

}  // namespace zs
