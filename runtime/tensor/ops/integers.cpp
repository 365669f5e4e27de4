#include "runtime/tensor/integers.h"

#include <array>
#include <cmath>
#include <utility>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/host_op.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/strided.h"

namespace zs {
namespace {

std::int32_t wrapped(std::int64_t value) { return static_cast<std::int32_t>(static_cast<std::uint32_t>(value)); }

std::int32_t result(IntegerOp op, std::int64_t a, std::int64_t b, std::int64_t c) {
  switch (op) {
    case IntegerOp::add: return wrapped(a + b);
    case IntegerOp::sub: return wrapped(a - b);
    case IntegerOp::mul: return wrapped(a * b);
    case IntegerOp::where: return static_cast<std::int32_t>(a != 0 ? b : c);
    case IntegerOp::floor_div:
    case IntegerOp::remainder: break;
  }
  if (b == 0) throw UsageError(fmt::format("{} divided by 0", a), "an op of i32 tensors has a divisor of 0");
  std::int64_t quotient = a / b;
  if (a % b != 0 && (a < 0) != (b < 0)) --quotient;
  return wrapped(op == IntegerOp::floor_div ? quotient : a - b * quotient);
}

/// Adds 1 to the index of the last dim, and moves each operand's place with it.
template <std::size_t kCount>
void advance(const Shape& shape, std::array<std::int64_t, Shape::kMaxDims>& index,
             const std::array<std::array<std::int64_t, Shape::kMaxDims>, kCount>& strides,
             std::array<std::int64_t, kCount>& at) {
  for (int d = shape.rank() - 1; d >= 0; --d) {
    const auto dim = static_cast<std::size_t>(d);
    for (std::size_t k = 0; k < kCount; ++k) at[k] += strides[k][dim];
    if (++index[dim] < shape[d]) return;
    for (std::size_t k = 0; k < kCount; ++k) at[k] -= strides[k][dim] * shape[d];
    index[dim] = 0;
  }
}

}  // namespace

Tensor integer_op(const char* name, IntegerOp op, const std::vector<Tensor>& operands) {
  if (!operands.front()) require_ids(name, "operands", operands.front());
  Shape shape = operands.front().shape();
  for (const Tensor& x : operands) {
    require_ids(name, "operands", x);
    const std::optional<Shape> common = common_shape(shape, x.shape());
    if (!common)
      throw UsageError(fmt::format("op {} of {} and {}", name, operands.front().describe(), x.describe()),
                       "dims, from the last on, are alike, or one of them is 1: reshape one of them");
    shape = *common;
  }
  Context& context = operands.front().context();
  Tensor y = Tensor::empty(context, shape, DType::i32);
  if (y.numel() == 0) return y;
  std::array<std::array<std::int64_t, Shape::kMaxDims>, 3> strides{};
  OpInfo info{"integer_op", {}, {y.buffer()}};
  for (std::size_t k = 0; k < operands.size(); ++k) {
    strides[k] = broadcast(view_of(operands[k]), shape).strides;
    info.reads.push_back(operands[k].buffer());
  }
  fill_on_host(context, std::move(info),
               [op, shape, strides](const std::vector<Buffer>& reads, const std::vector<Buffer>& writes) {
                 const auto element = [&](std::size_t k, std::int64_t at) {
                   return k < reads.size() ? std::int64_t{reads[k].as<std::int32_t>()[at]} : 0;
                 };
                 auto* const out = writes.front().as<std::int32_t>();
                 std::array<std::int64_t, Shape::kMaxDims> index{};
                 std::array<std::int64_t, 3> at{};
                 for (std::int64_t i = 0; i < writes.front().elems; ++i) {
                   out[i] = result(op, element(0, at[0]), element(1, at[1]), element(2, at[2]));
                   advance(shape, index, strides, at);
                 }
               });
  return y;
}

Tensor integer_of(const char* name, const Tensor& beside, float number) {
  if (std::trunc(number) != number || std::abs(number) > 2147483520.0f)
    throw UsageError(fmt::format("op {} of {} and {}", name, beside.describe(), number),
                     "give an integer, or cast the tensor: cast(x, DType::f32)");
  return Tensor::from_host(beside.context(), {}, std::vector<std::int32_t>{static_cast<std::int32_t>(number)});
}

Tensor floor_div(const Tensor& a, const Tensor& b) { return integer_op("floor_div", IntegerOp::floor_div, {a, b}); }
Tensor floor_div(const Tensor& a, std::int32_t b) {
  require_ids("floor_div", "a", a);
  return floor_div(a, Tensor::from_host(a.context(), {}, std::vector<std::int32_t>{b}));
}
Tensor remainder(const Tensor& a, const Tensor& b) { return integer_op("remainder", IntegerOp::remainder, {a, b}); }
Tensor remainder(const Tensor& a, std::int32_t b) {
  require_ids("remainder", "a", a);
  return remainder(a, Tensor::from_host(a.context(), {}, std::vector<std::int32_t>{b}));
}

}  // namespace zs
