#include "runtime/shard/adamw.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <iterator>
#include <limits>

#include "runtime/base/random.h"
#include "runtime/base/usage_error.h"
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
    Moments moments{context.pool().acquire(bytes, compute, "moments"),
                    context.pool().acquire(bytes, compute, "moments"),
                    ranges(unit, unit.held_segments()),
                    ranges(unit, unit.segments()),
                    std::vector<std::int64_t>(unit.parameters.size()),
                    std::vector<bool>(unit.parameters.size())};
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
  skips_ = context.pool().acquire(size_of(DType::f32), compute, "scalars");
  context.launch({"zero_skips", {}, {skips()}},
                 [&kernels = context.kernels(), out = skips()](ExecContext& exec) { kernels.zero(exec, out); });
  OrderCheck& check = executor.order_check();
  check.set("AdamW's beta1", fmt::to_string(config.beta1));
  check.set("AdamW's beta2", fmt::to_string(config.beta2));
  check.set("AdamW's eps", fmt::to_string(config.eps));
  check.set("weight decay", fmt::to_string(config.weight_decay));
  check.set("largest norm of the gradient (clip)", fmt::to_string(config.clip));
  check.set("way to sum the norm", config.order_free ? "in fixed point" : "in f64");
}

std::vector<AdamW::Range> AdamW::ranges(const FlatParameter& unit, const std::vector<ShardSegment>& segments) const {
  std::vector<Range> ranges;
  for (const ShardSegment& segment : segments) {
    const bool has_decay = unit.layout->views()[segment.view].has_decay;
    ranges.push_back({segment.shard_offset, segment.count, has_decay ? config_.weight_decay : 0.0f, unit.parameters[segment.view],
                      unit.rounding_of(segment), segment.view});
  }
  return ranges;
}

Buffer AdamW::grad_norm() const { return scalars(0).slice(offsetof(StepScalars, grad_norm) / sizeof(float), 1); }

void AdamW::step(float lr) { step(lr, 1); }

void AdamW::step(float lr, std::int64_t step_number) {
  executor_.step().check_update();
  set_scalars(lr, step_number);
  update();
  report_skipped();
}

/// One for each number of updates that parameters have had; as a rule it is the same for all.
void AdamW::set_slots() {
  slots_.clear();
  for (std::size_t unit = 0; unit < moments_.size(); ++unit) {
    const auto& parameters = executor_.units()[unit].parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i]->is_trainable()) slots_.push_back(moments_[unit].updates[i]);
    }
  }
  if (slots_.empty()) slots_.push_back(0);
  std::sort(slots_.begin(), slots_.end(), std::greater<>());
  slots_.erase(std::unique(slots_.begin(), slots_.end()), slots_.end());
  const std::int64_t bytes = std::ssize(slots_) * static_cast<std::int64_t>(sizeof(StepScalars));
  if (scalars_.bytes() >= bytes) return;
  Context& context = executor_.context();
  scalars_.release(context.stream());
  scalars_ = context.pool().acquire(bytes, context.stream(), "scalars");
}

std::int64_t AdamW::slot_of(std::int64_t updates) const {
  const auto slot = std::find(slots_.begin(), slots_.end(), updates);
  ZS_CHECK(slot != slots_.end(), "no scalars for {} updates", updates);
  return slot - slots_.begin();
}

std::uint64_t AdamW::slots_key() const {
  std::uint64_t key = slots_.size();
  if (slots_.size() == 1) return key;
  for (const Moments& moments : moments_)
    for (const std::int64_t updates : moments.updates) key = mix64(key ^ static_cast<std::uint64_t>(slots_.front() - updates));
  return key;
}

void AdamW::set_scalars(float lr, std::int64_t step_number) {
  if (step_number < 1) throw UsageError(fmt::format("the optimizer's step has the number {}", step_number), "count steps from 1");
  if (!std::isfinite(lr) || lr < 0) throw UsageError(fmt::format("the learning rate is {}", lr), "pass a finite number, 0 or above");
  set_slots();
  const auto correction = [](float beta, std::int64_t updates) {
    return static_cast<float>(1.0 - std::pow(static_cast<double>(beta), updates));
  };
  std::vector<StepScalars> values;
  for (const std::int64_t updates : slots_) {
    values.push_back({.lr = lr,
                      .bias_correction1 = correction(config_.beta1, updates + 1),
                      .bias_correction2 = correction(config_.beta2, updates + 1),
                      .clip_coefficient = 1,
                      .grad_norm = 0,
                      .skip = 0});
  }
  const Buffer out = all_scalars();
  Context& context = executor_.context();
  context.launch({"step_scalars", {}, {out}}, upload_of(context.kernels(), out, std::move(values)));
  executor_.order_check().set("learning rate", fmt::to_string(lr));
  executor_.order_check().set("number of the step", fmt::to_string(step_number));
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
    if (!executor_.units()[unit].grad_is_written || !executor_.counts_in_norm(executor_.units()[unit])) continue;
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
               v = moments_[unit].v.buffer(DType::f32, elems), narrow = flat.narrow_buffer(), steps = all_scalars();
  std::vector<Buffer> writes{master, m, v};
  std::vector<std::pair<Range, Buffer>> ranges;  // with its scalars
  for (const Range& range : trained(moments_[unit].held)) {
    ranges.emplace_back(range, scalars(slot_of(moments_[unit].updates[range.view])));
    if (!narrow.empty()) writes.push_back(narrow.slice(range.offset, range.count));  // its padding stays zero
  }
  context.launch({"adamw:" + flat.name, {master, grad, m, v, steps}, std::move(writes)},
                 [&kernels = context.kernels(), master, grad, m, v, narrow, ranges = std::move(ranges), config = config_,
                  is_at_random = flat.precision.rounds_stochastically](ExecContext& exec) {
                   for (const auto& [r, step] : ranges) {
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
  executor_.step().check_update();
  executor_.wait_reductions();
  check_has_gradient();
  if (config_.order_free) {
    squared_norm_order_free();
  } else {
    squared_norm();
  }
  const Buffer sum = squares(), largest = exponent();
  for (std::int64_t slot = 0; slot < std::ssize(slots_); ++slot) {
    const Buffer step_scalars = scalars(slot);
    std::vector<Buffer> reads{step_scalars, sum};
    if (!largest.empty()) reads.push_back(largest);
    context.launch({"clip_coefficient", std::move(reads), {step_scalars}},
                   [&kernels = context.kernels(), step_scalars, sum, largest, shift = shift_, clip = config_.clip](ExecContext& exec) {
                     kernels.clip_coefficient(exec, step_scalars, sum, largest, shift, clip);
                   });
  }
  count_skipped();
  for (std::size_t unit = 0; unit < moments_.size(); ++unit) {
    const FlatParameter& flat = executor_.units()[unit];
    for (std::size_t i = 0; i < flat.parameters.size(); ++i)
      moments_[unit].is_updated[i] = flat.grad_is_written && flat.parameters[i]->is_trainable();
    if (flat.grad_is_written) update_unit(unit);
  }
  count_updates();
  executor_.clear_gradients();
  executor_.masters_updated();
}

/// On one rank alone it is that rank's mistake; where it is a difference between ranks, the comparison on its way says more.
void AdamW::check_has_gradient() {
  try {
    executor_.step().check_has_gradient();
  } catch (const UsageError&) {
    executor_.context().device().synchronize();
    throw;
  }
}

void AdamW::count_updates() {
  for (Moments& moments : moments_) {
    for (std::size_t i = 0; i < moments.updates.size(); ++i) moments.updates[i] += std::int64_t{moments.is_updated[i]};
  }
}

void AdamW::count_skipped() {
  Context& context = executor_.context();
  const Buffer count = skips(), skip = scalars(0).slice(offsetof(StepScalars, skip) / sizeof(float), 1);
  context.launch({"count_skipped", {count, skip}, {count}},
                 [&kernels = context.kernels(), count, skip](ExecContext& exec) { kernels.add(exec, count, count, skip); });
}

std::int64_t AdamW::skipped() const {
  const HostView count(executor_.context(), executor_.context().stream(), skips());
  return static_cast<std::int64_t>(*count.as<float>());
}

void AdamW::report_skipped() {
  if (executor_.rank() != 0) return;
  launch_on_host(executor_.context(), {"report_skipped", {skips()}, {}},
                 [has_reported = has_reported_](ExecContext&, const std::vector<Buffer>& reads) {
                   if (*has_reported || *reads[0].as<float>() == 0) return;
                   *has_reported = true;
                   fmt::print(stderr,
                              "zshard: warning: an optimizer's step was skipped, since the gradient was not finite; "
                              "AdamW::skipped() counts such steps\n");
                 });
}

}  // namespace zs
