#pragma once

#include "runtime/tensor/tensor.h"

namespace zs {

// Arithmetic of i32 tensors, exact, broadcast as that of floats is; no gradients. What leaves i32 wraps around. add,
// sub, mul, neg, where and their operators take i32 too. There is no kernel: on a GPU the host computes them.

/// a / b, rounded towards minus infinity; a divisor of 0 is an error of the next synchronize.
Tensor floor_div(const Tensor& a, const Tensor& b);
Tensor floor_div(const Tensor& a, std::int32_t b);
/// a - b floor_div(a, b): of b's sign.
Tensor remainder(const Tensor& a, const Tensor& b);
Tensor remainder(const Tensor& a, std::int32_t b);

/// Function of integers.
enum class IntegerOp : std::uint8_t {
  add,
  sub,
  mul,
  floor_div,
  remainder,
  where,  ///< b where a is not 0, else c
};
/// op of i32 tensors that are broadcast; `name` is the op's in errors. where has three, the others two.
Tensor integer_op(const char* name, IntegerOp op, const std::vector<Tensor>& operands);
/// A number beside an i32 tensor: a scalar. UsageError where it is no integer of i32.
Tensor integer_of(const char* name, const Tensor& beside, float number);

}  // namespace zs
