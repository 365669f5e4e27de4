#include "runtime/shard/adamw.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>

#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

/// x^2 < 2^(2 e + 2) for every element, so n of them stay below 2^63 when shift + 2 + log2(n) < 63.
int fixed_point_shift(std::int64_t elements) { return 60 - std::bit_width(static_cast<std::uint64_t>(elements)); }

}  // namespace

AdamW::AdamW(Executor& executor, const AdamWConfig& config) : executor_(executor), config_(config) {
  Context& context = executor.context();
  Stream& compute = context.stream();
  std::int64_t elements = 0;
  for (const FlatParameter& unit : executor.units()) {
    elements += unit.layout->numel();
    const std::int64_t elems = unit.layout->held_elems(), bytes = elems * size_of(DType::f32);
    const MemoryOwner owner(context.device().memory(), unit.name);
    Moments moments{context.pool().acquire(bytes, compute, "moments"), context.pool().acquire(bytes, compute, "moments"),
                    ranges(unit, unit.held_segments()), ranges(unit, unit.segments())};
    const Buffer m = moments.m.buffer(DType::f32, elems), v = moments.v.buffer(DType::f32, elems);
    context.launch({"zero_moments", {}, {m, v}}, [&kernels = context.kernels(), m, v](ExecContext& exec) {
      kernels.zero(exec, m);
      kernels.zero(exec, v);
    });
    moments_.push_back(std::move(moments));
  }
  shift_ = fixed_point_shift(elements);
  scalars_ = context.pool().acquire(sizeof(StepScalars), compute, "scalars");
  squares_ = context.pool().acquire(size_of(DType::f64), compute, "scalars");
  exponent_ = context.pool().acquire(size_of(DType::i32), compute, "scalars");
}

std::vector<AdamW::Range> AdamW::ranges(const FlatParameter& unit, const std::vector<ShardSegment>& segments) const {
  std::vector<Range> ranges;
  for (const ShardSegment& segment : segments) {
    const bool has_decay = unit.layout->views()[segment.view].has_decay;
    ranges.push_back({segment.shard_offset, segment.count, has_decay ? config_.weight_decay : 0.0f, unit.parameters[segment.view],
                      unit.rounding_of(segment)});
  }
  return ranges;
}

Buffer AdamW::grad_norm() const { return scalars().slice(offsetof(StepScalars, grad_norm) / sizeof(float), 1); }

void AdamW::set_scalars(float lr, std::int64_t step_number) {
  const auto bias_correction = [&](float beta) { return static_cast<float>(1.0 - std::pow(static_cast<double>(beta), step_number)); };
  const StepScalars values{.lr = lr,
                           .bias_correction1 = bias_correction(config_.beta1),
                           .bias_correction2 = bias_correction(config_.beta2),
                           .clip_coefficient = 1,
                           .grad_norm = 0,
                           .skip = 0};
  const Buffer out = scalars();
  Context& context = executor_.context();
  context.launch({"step_scalars", {}, {out}}, upload_of(context.kernels(), out, std::vector<StepScalars>{values}));
}

/// Frozen parameters take part in nothing.
std::vector<AdamW::Range> AdamW::trained(const std::vector<Range>& ranges) {
  std::vector<Range> trained;
  std::copy_if(ranges.begin(), ranges.end(), std::back_inserter(trained),
               [](const Range& range) { return range.parameter->is_trainable(); });
  return trained;
}

std::vector<Buffer> AdamW::gradient_ranges() const {
  std::vector<Buffer> ranges;
  for (std::size_t unit = 0; unit < moments_.size(); ++unit) {
    if (!executor_.units()[unit].grad_is_written) continue;
    const Buffer grad = executor_.units()[unit].grad_buffer();
    for (const Range& range : trained(moments_[unit].counted)) ranges.push_back(grad.slice(range.offset, range.count));
  }
  return ranges;
}

void AdamW::squared_norm() {
  Context& context = executor_.context();
  const Buffer out = squares();
  context.launch({"squared_norm", gradient_ranges(), {out}},
                 [&kernels = context.kernels(), out, ranges = gradient_ranges()](ExecContext& exec) {
                   kernels.zero(exec, out);
                   for (const Buffer& range : ranges) kernels.squared_norm(exec, out, range);
                 });
  executor_.norm_comm().all_reduce(context.stream(), "grad_norm", out, ReduceOp::sum);
}

void AdamW::squared_norm_order_free() {
  Context& context = executor_.context();
  const Buffer largest = exponent(), out = squares();
  context.launch({"max_exponent", gradient_ranges(), {largest}},
                 [&kernels = context.kernels(), largest, ranges = gradient_ranges()](ExecContext& exec) {
                   constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
                   fill_words(exec, largest, std::bit_cast<std::uint32_t>(kLeast));
                   for (const Buffer& range : ranges) kernels.max_exponent(exec, largest, range);
                 });
  executor_.norm_comm().all_reduce(context.stream(), "grad_norm_exponent", largest, ReduceOp::max);
  auto reads = gradient_ranges();
  reads.push_back(largest);
  context.launch({"fixed_point_squares", std::move(reads), {out}},
                 [&kernels = context.kernels(), out, largest, shift = shift_, ranges = gradient_ranges()](ExecContext& exec) {
                   kernels.zero(exec, out);
                   for (const Buffer& range : ranges) kernels.fixed_point_squares(exec, out, range, largest, shift);
                 });
  executor_.norm_comm().all_reduce(context.stream(), "grad_norm", out, ReduceOp::sum);
}

void AdamW::update_unit(std::size_t unit) {
  Context& context = executor_.context();
  const FlatParameter& flat = executor_.units()[unit];
  const std::int64_t elems = flat.layout->held_elems();
  const Buffer master = flat.master_buffer(), grad = flat.held_grad_buffer(), m = moments_[unit].m.buffer(DType::f32, elems),
               v = moments_[unit].v.buffer(DType::f32, elems), narrow = flat.narrow_buffer(), step = scalars();
  std::vector<Buffer> writes{master, m, v};
  std::vector<Range> ranges = trained(moments_[unit].held);
  for (const Range& range : ranges) {
    if (!narrow.empty()) writes.push_back(narrow.slice(range.offset, range.count));  // its padding stays zero
  }
  context.launch({"adamw:" + flat.name, {master, grad, m, v, step}, std::move(writes)},
                 [&kernels = context.kernels(), master, grad, m, v, narrow, step, ranges = std::move(ranges), config = config_,
                  is_at_random = flat.precision.rounds_stochastically](ExecContext& exec) {
                   for (const Range& r : ranges) {
                     const Buffer updated = master.slice(r.offset, r.count),
                                  copy = narrow.empty() ? Buffer{} : narrow.slice(r.offset, r.count);
                     kernels.adamw(exec, updated, m.slice(r.offset, r.count), v.slice(r.offset, r.count), is_at_random ? Buffer{} : copy,
                                   grad.slice(r.offset, r.count), step, {config.beta1, config.beta2, config.eps, r.weight_decay});
                     if (is_at_random && !copy.empty()) kernels.stochastic_cast(exec, copy, updated, r.rounding);
                   }
                 });
}

void AdamW::update() {
  Context& context = executor_.context();
  executor_.wait_reductions();
  if (config_.order_free) {
    squared_norm_order_free();
  } else {
    squared_norm();
  }
  const Buffer step_scalars = scalars(), sum = squares(), largest = exponent();
  std::vector<Buffer> reads{step_scalars, sum};
  if (!largest.empty()) reads.push_back(largest);
  context.launch({"clip_coefficient", std::move(reads), {step_scalars}},
                 [&kernels = context.kernels(), step_scalars, sum, largest, shift = shift_, clip = config_.clip](ExecContext& exec) {
                   kernels.clip_coefficient(exec, step_scalars, sum, largest, shift, clip);
                 });
  for (std::size_t unit = 0; unit < moments_.size(); ++unit) {
    if (executor_.units()[unit].grad_is_written) update_unit(unit);
  }
  executor_.clear_gradients();
  executor_.masters_updated();
}

}  // namespace zs
