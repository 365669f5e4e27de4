#include "runtime/shard/optimizers/grad_norm.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

/// A trained parameter that is in no unit, and whose gradient somebody has written.
bool has_own_gradient(const Parameter& ignored) {
  return ignored.is_trainable() && ignored.grad().data != nullptr && ignored.is_grad_written();
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

int fixed_point_shift(std::int64_t elements) { return 60 - std::bit_width(static_cast<std::uint64_t>(elements)); }

GradNorm::GradNorm(Executor& executor, const NormOptions& options) : executor_(executor), options_(options) {
  std::int64_t elements = 0;
  for (const FlatParameter& unit : executor.units()) {
    for (const FlatView& view : unit.layout->views()) elements += view.numel * view.part.count;
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
  } catch (const UsageError&) {  // if ranks differ in this, the comparison on its way says more
    executor.context().device().synchronize();
    throw;
  }
}

bool GradNorm::is_counted(std::size_t unit) const {
  const FlatParameter& flat = executor_.units()[unit];
  return flat.grad_is_written && executor_.counts_in_norm(flat);
}

/// Parts that this rank counts of a unit, whose gradient is `held`; frozen parameters take part in nothing.
std::vector<Buffer> GradNorm::parts_of(std::size_t unit, const Buffer& held) const {
  std::vector<Buffer> parts;
  for (const ShardSegment& segment : segments_[unit]) {
    const FlatParameter& flat = executor_.units()[unit];
    if (flat.parameters[segment.view]->is_trainable() && flat.counts(flat.layout->views()[segment.view]))
      parts.push_back(held.slice(segment.shard_offset, segment.count));
  }
  return parts;
}

/// Gradients that every rank has: one rank counts them.
std::vector<Buffer> GradNorm::ignored_parts() const {
  std::vector<Buffer> parts;
  if (executor_.norm_comm().rank() != 0) return parts;
  for (const Parameter* ignored : executor_.ignored())
    if (has_own_gradient(*ignored)) parts.push_back(ignored->grad());
  return parts;
}

void GradNorm::launch(const Accumulation& sum, bool is_first, const std::vector<Buffer>& parts) {
  std::vector<Buffer> reads = parts;
  reads.insert(reads.end(), sum.reads.begin(), sum.reads.end());
  if (!is_first) reads.push_back(sum.out);
  executor_.context().launch({sum.name, std::move(reads), {sum.out}},
                             [is_first, parts, begin = sum.begin, add = sum.add](ExecContext& exec) {
                               if (is_first) begin(exec);
                               add(exec, parts);
                             });
}

/// Accumulates in the order of units, wherever they are: those of the device all at once, and those that the host keeps
/// one after the other, while the next one's comes.
void GradNorm::accumulate(const Accumulation& sum) {
  std::vector<std::size_t> on_host;
  for (std::size_t unit = 0; unit < segments_.size(); ++unit)
    if (is_counted(unit) && executor_.units()[unit].host_grad) on_host.push_back(unit);
  auto load = [&, loaded = std::size_t{0}]() mutable {
    if (loaded == on_host.size()) return HostLink::Window{};
    const FlatParameter& flat = executor_.units()[on_host[loaded++]];
    return executor_.link().load(flat.name, {flat.kept_grad_buffer()});
  };
  HostLink::Window next = load();
  std::vector<Buffer> here;
  bool is_first = true;
  const auto add = [&](const std::vector<Buffer>& parts) { launch(sum, std::exchange(is_first, false), parts); };
  for (std::size_t unit = 0; unit < segments_.size(); ++unit) {
    if (!is_counted(unit)) continue;
    const FlatParameter& flat = executor_.units()[unit];
    if (!flat.host_grad) {
      const std::vector<Buffer> parts = parts_of(unit, flat.held_grad_buffer());
      here.insert(here.end(), parts.begin(), parts.end());
      continue;
    }
    if (!here.empty()) add(std::exchange(here, {}));
    HostLink::Window window = std::exchange(next, load());
    executor_.context().stream().wait(window.arrived);
    add(parts_of(unit, window[0]));
    HostLink::drop(std::move(window), executor_.context().stream());
  }
  const std::vector<Buffer> ignored = ignored_parts();
  here.insert(here.end(), ignored.begin(), ignored.end());
  if (is_first || !here.empty()) add(here);
}

void GradNorm::sum() {
  if (options_.power != 2) return sum_powers();
  is_order_free() ? sum_squares_order_free() : sum_squares();
}

void GradNorm::sum_squares() {
  const Context& context = executor_.context();
  const KernelTable& kernels = context.kernels();
  const Buffer out = total();
  accumulate(
      {.name = "squared_norm",
       .reads = {},
       .out = out,
       .begin = [&kernels, out](ExecContext& exec) { kernels.zero(exec, out); },
       .add = [&kernels, out](ExecContext& exec, const SumParts& parts) { kernels.squared_norm(exec, out, parts); }});
  executor_.norm_comm().all_reduce(context.stream(), "grad_norm", out, ReduceOp::sum);
}

void GradNorm::sum_squares_order_free() {
  const Context& context = executor_.context();
  const KernelTable& kernels = context.kernels();
  const Buffer most = largest(), out = total();
  accumulate(
      {.name = "max_exponent",
       .reads = {},
       .out = most,
       .begin =
           [most](ExecContext& exec) {
             constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
             fill_words(exec, most, std::bit_cast<std::uint32_t>(kLeast));
           },
       .add = [&kernels, most](ExecContext& exec, const SumParts& parts) { kernels.max_exponent(exec, most, parts); }});
  executor_.norm_comm().all_reduce(context.stream(), "grad_norm_exponent", most, ReduceOp::max);
  accumulate({.name = "fixed_point_squares",
              .reads = {most},
              .out = out,
              .begin = [&kernels, out](ExecContext& exec) { kernels.zero(exec, out); },
              .add = [&kernels, out, most, shift = shift_](
                         ExecContext& exec,
                         const SumParts& parts) { kernels.fixed_point_squares(exec, out, parts, most, shift); }});
  executor_.norm_comm().all_reduce(context.stream(), "grad_norm", out, ReduceOp::sum);
}

/// Leaves the square of the norm, as the others do.
void GradNorm::sum_powers() {
  Context& context = executor_.context();
  const KernelTable& kernels = context.kernels();
  const Buffer most = largest(), out = total();
  const float power = options_.power;
  accumulate({.name = "max_magnitude",
              .reads = {},
              .out = most,
              .begin = [&kernels, most](ExecContext& exec) { kernels.zero(exec, most); },
              .add = [&kernels, most](ExecContext& exec,
                                      const SumParts& parts) { kernels.max_magnitude(exec, most, parts); }});
  executor_.norm_comm().all_reduce(context.stream(), "grad_norm_largest", most, ReduceOp::max);
  if (!std::isinf(power)) {
    accumulate(
        {.name = "power_sum",
         .reads = {most},
         .out = out,
         .begin = [&kernels, out](ExecContext& exec) { kernels.zero(exec, out); },
         .add = [&kernels, out, most, power](
                    ExecContext& exec, const SumParts& parts) { kernels.power_sum(exec, out, parts, most, power); }});
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
  if (executor.has_transient_gradients()) {
    throw UsageError("clip_grad_norm() of gradients that an optimizer takes in backward",
                     "leave it out, or set in_backward = false");
  }
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
  for (const FlatParameter& unit : executor.units()) {
    if (max_norm == 0 || !unit.grad_is_written) continue;
    if (!unit.host_grad) {
      clip(unit.name, unit.held_grad_buffer());
      continue;
    }
    HostLink::Window window = executor.link().load(unit.name, {unit.kept_grad_buffer()});
    context.stream().wait(window.arrived);
    clip(unit.name, window[0]);
    executor.link().store(std::move(window));
  }
  for (const Parameter* ignored : executor.ignored())
    if (max_norm > 0 && has_own_gradient(*ignored)) clip(ignored->name(), ignored->grad());
  const Buffer found = scalars.slice(offsetof(StepScalars, grad_norm) / sizeof(float), 1);
  Tensor result = Tensor::empty(context, {1}, DType::f32, "scalars");
  context.launch({"grad_norm", {found}, {result.buffer()}},
                 [&kernels, found, out = result.buffer()](ExecContext& exec) { kernels.copy(exec, out, found); });
  return result;
}

}  // namespace zs
