#include "runtime/tensor/integers.h"

#include <cmath>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/strided.h"

namespace zs {

Tensor integers(const char* name, MapOp op, const std::vector<Tensor>& tensors,
                std::initializer_list<Operand> operands) {
  for (const Tensor& x : tensors) require_ids(name, "operands", x);
  Shape shape = tensors.front().shape();
  for (const Tensor& x : tensors) {
    const std::optional<Shape> common = common_shape(shape, x.shape());
    if (!common)
      throw UsageError(fmt::format("op {} of {} and {}", name, tensors.front().describe(), x.describe()),
                       "dims, from the last on, are alike, or one of them is 1: reshape one of them");
    shape = *common;
  }
  const bool is_mask = op == MapOp::int_eq || op == MapOp::int_lt || op == MapOp::int_gt;
  return computed(name, tensors.front().context(), shape, is_mask ? DType::f32 : DType::i32, op, operands);
}

Operand integer_beside(const char* name, const Tensor& tensor, float number) {
  if (std::trunc(number) != number || std::abs(number) > 2147483520.0f)
    throw UsageError(fmt::format("op {} of {} and {}", name, tensor.describe(), number),
                     "give an integer, or cast the tensor: cast(x, DType::f32)");
  return bits_of_integer(static_cast<std::int64_t>(number));
}

Tensor floor_div(const Tensor& a, const Tensor& b) { return integers("floor_div", MapOp::floor_div, {a, b}, {a, b}); }
Tensor floor_div(const Tensor& a, std::int32_t b) {
  return integers("floor_div", MapOp::floor_div, {a}, {a, bits_of_integer(b)});
}
Tensor remainder(const Tensor& a, const Tensor& b) { return integers("remainder", MapOp::remainder, {a, b}, {a, b}); }
Tensor remainder(const Tensor& a, std::int32_t b) {
  return integers("remainder", MapOp::remainder, {a}, {a, bits_of_integer(b)});
}

}  // namespace zs
