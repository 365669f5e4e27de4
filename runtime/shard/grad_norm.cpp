#include "runtime/shard/grad_norm.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

/// x^2 < 2^(2 e + 2) for every element, so n of them stay below 2^63 when shift + 2 + log2(n) < 63.
int fixed_point_shift(std::int64_t elements) { return 60 - std::bit_width(static_cast<std::uint64_t>(elements)); }

/// A trained parameter that is in no unit, and whose gradient somebody has written.
bool has_own_gradient(const Parameter& ignored) {
  return ignored.is_trainable() && ignored.has_grad_buffer() && ignored.is_grad_written();
}

void check_options(float max_norm, const NormOptions& options) {
  if (!std::isfinite(max_norm) || max_norm < 0)
    throw UsageError(fmt::format("clip_grad_norm() to a norm of {}", max_norm),
                     "pass a finite number above 0, or 0 to measure only");
  if (!(options.power > 0)) {
    throw UsageError(fmt::format("clip_grad_norm() by a norm of power {}", options.power),
                     "pass a number above 0, or infinity for the largest element");
  }
  if (options.order_free && options.power != 2 && !std::isinf(options.power)) {
    throw UsageError(fmt::format("clip_grad_norm() has no order-free sum of power {}", options.power),
                     "use power 2 or infinity, or leave order_free out");
  }
}

}  // namespace

GradNorm::GradNorm(Executor& executor, const NormOptions& options) : executor_(executor), options_(options) {
  std::int64_t elements = 0;
  for (const FlatParameter& unit : executor.units()) {
    elements += unit.layout->numel();
    segments_.push_back(unit.segments());
  }
  for (const Parameter* ignored : executor.ignored()) elements += ignored->numel();
  shift_ = fixed_point_shift(elements);
  Context& context = executor.context();
  total_ = context.pool().acquire(size_of(DType::f64), context.stream(), "scalars");
  largest_ = context.pool().acquire(size_of(DType::i32), context.stream(), "scalars");
}

void GradNorm::take_gradients(Executor& executor) {
  executor.wait_reductions();
  try {
    executor.step().check_has_gradient();
  } catch (const UsageError&) {  // where it is a difference between ranks, the comparison on its way says more
    executor.context().device().synchronize();
    throw;
  }
}

/// What this rank counts of them; frozen parameters take part in nothing. What every rank has is counted by one.
std::vector<Buffer> GradNorm::gradients() const {
  std::vector<Buffer> gradients;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const FlatParameter& unit = executor_.units()[i];
    if (!unit.grad_is_written || !executor_.counts_in_norm(unit)) continue;
    for (const ShardSegment& segment : segments_[i]) {
      if (unit.parameters[segment.view]->is_trainable())
        gradients.push_back(unit.grad_buffer().slice(segment.shard_offset, segment.count));
    }
  }
  if (executor_.norm_comm().rank() != 0) return gradients;
  for (const Parameter* ignored : executor_.ignored())
    if (has_own_gradient(*ignored)) gradients.push_back(ignored->grad());
  return gradients;
}

void GradNorm::sum() {
  if (options_.power != 2) return sum_powers();
  is_order_free() ? sum_squares_order_free() : sum_squares();
}

void GradNorm::sum_squares() {
  Context& context = executor_.context();
  const Buffer out = total();
  context.launch({"squared_norm", gradients(), {out}},
                 [&kernels = context.kernels(), out, parts = gradients()](ExecContext& exec) {
                   kernels.zero(exec, out);
                   for (const Buffer& part : parts) kernels.squared_norm(exec, out, part);
                 });
  executor_.norm_comm().all_reduce(context.stream(), "grad_norm", out, ReduceOp::sum);
}

void GradNorm::sum_squares_order_free() {
  Context& context = executor_.context();
  const Buffer most = largest(), out = total();
  context.launch({"max_exponent", gradients(), {most}},
                 [&kernels = context.kernels(), most, parts = gradients()](ExecContext& exec) {
                   constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
                   fill_words(exec, most, std::bit_cast<std::uint32_t>(kLeast));
                   for (const Buffer& part : parts) kernels.max_exponent(exec, most, part);
                 });
  executor_.norm_comm().all_reduce(context.stream(), "grad_norm_exponent", most, ReduceOp::max);
  auto reads = gradients();
  reads.push_back(most);
  context.launch({"fixed_point_squares", std::move(reads), {out}},
                 [&kernels = context.kernels(), out, most, shift = shift_, parts = gradients()](ExecContext& exec) {
                   kernels.zero(exec, out);
                   for (const Buffer& part : parts) kernels.fixed_point_squares(exec, out, part, most, shift);
                 });
  executor_.norm_comm().all_reduce(context.stream(), "grad_norm", out, ReduceOp::sum);
}

/// Leaves the square of the norm, as the others do.
void GradNorm::sum_powers() {
  Context& context = executor_.context();
  const KernelTable& kernels = context.kernels();
  const Buffer most = largest(), out = total();
  const float power = options_.power;
  context.launch({"max_magnitude", gradients(), {most}}, [&kernels, most, parts = gradients()](ExecContext& exec) {
    kernels.zero(exec, most);
    for (const Buffer& part : parts) kernels.max_magnitude(exec, most, part);
  });
  executor_.norm_comm().all_reduce(context.stream(), "grad_norm_largest", most, ReduceOp::max);
  if (!std::isinf(power)) {
    auto reads = gradients();
    reads.push_back(most);
    context.launch({"power_sum", std::move(reads), {out}},
                   [&kernels, out, most, power, parts = gradients()](ExecContext& exec) {
                     kernels.zero(exec, out);
                     for (const Buffer& part : parts) kernels.power_sum(exec, out, part, most, power);
                   });
    executor_.norm_comm().all_reduce(context.stream(), "grad_norm", out, ReduceOp::sum);
  }
  std::vector<Buffer> reads{most};
  if (!std::isinf(power)) reads.push_back(out);
  context.launch({"norm_of_powers", std::move(reads), {out}},
                 [&kernels, out, most, power](ExecContext& exec) { kernels.norm_of_powers(exec, out, most, power); });
}

void GradNorm::set_clip(const Buffer& scalars, float most) const {
  Context& context = executor_.context();
  const Buffer sum = total(), exponents = exponent();
  std::vector<Buffer> reads{scalars, sum};
  if (!exponents.empty()) reads.push_back(exponents);
  context.launch({"clip_coefficient", std::move(reads), {scalars}},
                 [&kernels = context.kernels(), scalars, sum, exponents, shift = shift_, most](ExecContext& exec) {
                   kernels.clip_coefficient(exec, scalars, sum, exponents, shift, most);
                 });
}

Tensor clip_grad_norm(Executor& executor, float max_norm, const NormOptions& options) {
  check_options(max_norm, options);
  executor.step().check_update();
  executor.order_check().set("largest norm of the gradient (clip_grad_norm)", fmt::to_string(max_norm));
  executor.order_check().set("power of that norm", fmt::to_string(options.power));
  GradNorm::take_gradients(executor);
  Context& context = executor.context();
  const KernelTable& kernels = context.kernels();
  GradNorm norm(executor, options);
  norm.sum();
  const Memory memory = context.pool().acquire(sizeof(StepScalars), context.stream(), "scalars");
  const Buffer scalars = memory.buffer(DType::f32, sizeof(StepScalars) / sizeof(float));
  context.launch({"zero_scalars", {}, {scalars}},
                 [&kernels, scalars](ExecContext& exec) { kernels.zero(exec, scalars); });
  norm.set_clip(scalars, max_norm);
  const auto clip = [&](const std::string& name, const Buffer& gradient) {
    context.launch(
        {"clip_gradient:" + name, {gradient, scalars}, {gradient}},
        [&kernels, gradient, scalars](ExecContext& exec) { kernels.clip_gradient(exec, gradient, scalars); });
  };
  for (const FlatParameter& unit : executor.units())
    if (max_norm > 0 && unit.grad_is_written) clip(unit.name, unit.held_grad_buffer());
  for (const Parameter* ignored : executor.ignored())
    if (max_norm > 0 && has_own_gradient(*ignored)) clip(ignored->name(), ignored->grad());
  const Buffer found = scalars.slice(offsetof(StepScalars, grad_norm) / sizeof(float), 1);
  Tensor result = Tensor::empty(context, {1}, DType::f32, "scalars");
  context.launch({"grad_norm", {found}, {result.buffer()}},
                 [&kernels, found, out = result.buffer()](ExecContext& exec) { kernels.copy(exec, out, found); });
  return result;
}

}  // namespace zs
