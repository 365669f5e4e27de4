#include "runtime/shard/optimizer.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <iterator>

#include "runtime/base/random.h"
#include "runtime/base/usage_error.h"
#include "runtime/tensor/host_view.h"

namespace zs {
Optimizer::Optimizer(Executor& executor, const Definition& definition, const OptimizerOptions& options)
    : executor_(executor), name_(definition.name), kind_(definition.name), options_(options) {
  Context& context = executor.context();
  Stream& compute = context.stream();
  std::transform(kind_.begin(), kind_.end(), kind_.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const std::string& state : definition.state) state_names_.push_back(kind_ + "." + state);
  for (const ParameterGroup& group : options.groups) patterns_.emplace_back(group.pattern);
  check_groups();
  for (const FlatParameter& unit : executor.units()) units_.push_back(make_unit(unit));
  scalars_ = context.pool().acquire(sizeof(StepScalars), compute, "scalars");
  norm_.emplace(executor, NormOptions{.order_free = options.order_free});
  skips_ = context.pool().acquire(size_of(DType::f32), compute, "scalars");
  context.launch({"zero_skips", {}, {skips()}},
                 [&kernels = context.kernels(), out = skips()](ExecContext& exec) { kernels.zero(exec, out); });
  OrderCheck& check = executor.order_check();
  for (const auto& [setting, value] : definition.settings) check.set(setting, value);
  check.set("weight decay", fmt::to_string(options.weight_decay));
  check.set("largest norm of the gradient (clip)", fmt::to_string(options.clip));
  check.set("way to sum the norm", options.order_free ? "in fixed point" : "in f64");
  std::string groups;
  for (const auto& [pattern, lr_scale, decay] : options.groups)
    groups += fmt::format("{} lr x {} decay {}; ", pattern, lr_scale, decay ? fmt::to_string(*decay) : "as the rest");
  if (!groups.empty()) check.set("groups of parameters", groups);
}

Optimizer::Unit Optimizer::make_unit(const FlatParameter& unit) {
  Context& context = executor_.context();
  const std::int64_t elems = unit.layout->held_elems(), bytes = elems * size_of(DType::f32);
  const MemoryOwner owner(context.device().memory(), unit.name);
  Unit made{{},
            ranges(unit, unit.held_segments()),
            std::vector<std::int64_t>(unit.parameters.size()),
            {},
            std::vector<bool>(unit.parameters.size())};
  for (const Parameter* parameter : unit.parameters) {
    const ParameterGroup* const group = group_of(parameter->name());
    made.lr_scales.push_back(group != nullptr ? group->lr_scale : 1.0f);
  }
  const bool is_on_host = unit.placement->options.residence.has_moments_on_host;
  std::vector<Buffer> zeros;
  for (std::size_t i = 0; i < state_names_.size(); ++i) {
    Memory memory = is_on_host ? executor_.link().acquire(bytes, "moments")
                               : context.pool().acquire(bytes, context.stream(), "moments");
    zeros.push_back(made.state.emplace_back(std::move(memory)).buffer(DType::f32, elems));
  }
  if (zeros.empty()) return made;
  HostLink::Window window = executor_.link().open(unit.name, is_on_host ? zeros : std::vector<Buffer>{});
  for (std::size_t i = 0; i < window.parts.size(); ++i) zeros[i] = window[i];
  context.launch({"zero_moments", {}, zeros}, [&kernels = context.kernels(), zeros](ExecContext& exec) {
    for (const Buffer& buffer : zeros) kernels.zero(exec, buffer);
  });
  executor_.link().store(std::move(window));
  return made;
}

const ParameterGroup* Optimizer::group_of(const std::string& name) const {
  const auto pattern = std::find_if(patterns_.begin(), patterns_.end(),
                                    [&](const NamePattern& one) { return one.matches(name); });
  return pattern == patterns_.end() ? nullptr : &options_.groups[static_cast<std::size_t>(pattern - patterns_.begin())];
}

void Optimizer::check_groups() const {
  for (const ParameterGroup& group : options_.groups) {
    const auto is_of = [&](const Parameter* parameter) { return group_of(parameter->name()) == &group; };
    const auto has_one = [&](const FlatParameter& unit) {
      return std::any_of(unit.parameters.begin(), unit.parameters.end(), is_of);
    };
    if (!std::any_of(executor_.units().begin(), executor_.units().end(), has_one)) {
      throw UsageError(fmt::format("{}: no parameter is of the group \"{}\"", name_, group.pattern),
                       "name parameters as they are called, such as \"*.bias\", and put narrower patterns first");
    }
    if (!std::isfinite(group.lr_scale) || group.lr_scale < 0)
      throw UsageError(
          fmt::format("{}: the group \"{}\" has a learning rate times {}", name_, group.pattern, group.lr_scale),
          "pass 0 or more");
  }
}

std::vector<Optimizer::Range> Optimizer::ranges(const FlatParameter& unit,
                                                const std::vector<ShardSegment>& segments) const {
  std::vector<Range> ranges;
  for (const ShardSegment& segment : segments) {
    const FlatView& view = unit.layout->views()[segment.view];
    const ParameterGroup* const group = group_of(view.name);
    const float usual = view.has_decay ? options_.weight_decay : 0.0f;
    ranges.push_back({segment.shard_offset, segment.count,
                      group != nullptr ? group->weight_decay.value_or(usual) : usual,
                      group != nullptr ? group->lr_scale : 1.0f, unit.parameters[segment.view],
                      unit.rounding_of(segment), segment.view});
  }
  return ranges;
}

Buffer Optimizer::grad_norm() const { return scalars(0).slice(offsetof(StepScalars, grad_norm) / sizeof(float), 1); }

void Optimizer::step(float lr) { step(lr, 1); }

void Optimizer::step(float lr, std::int64_t step_number) {
  executor_.step().check_update();
  set_scalars(lr, step_number);
  update();
  report_skipped();
}

/// One for each number of updates that parameters have had; as a rule it is the same for all.
void Optimizer::set_slots() {
  slots_.clear();
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    const auto& parameters = executor_.units()[unit].parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i]->is_trainable()) slots_.push_back({units_[unit].updates[i], units_[unit].lr_scales[i]});
    }
  }
  if (slots_.empty()) slots_.push_back({0, 1});
  std::sort(slots_.begin(), slots_.end(), std::greater<>());
  slots_.erase(std::unique(slots_.begin(), slots_.end()), slots_.end());
  const std::int64_t bytes = std::ssize(slots_) * static_cast<std::int64_t>(sizeof(StepScalars));
  if (scalars_.bytes() >= bytes) return;
  Context& context = executor_.context();
  scalars_.release(context.stream());
  scalars_ = context.pool().acquire(bytes, context.stream(), "scalars");
}

std::int64_t Optimizer::place_of(const Slot& slot) const {
  const auto place = std::find(slots_.begin(), slots_.end(), slot);
  ZS_CHECK(place != slots_.end(), "no scalars for {} updates", slot.updates);
  return place - slots_.begin();
}

std::uint64_t Optimizer::slots_key() const {
  std::uint64_t key = slots_.size();
  if (slots_.size() == 1) return key;
  for (const Unit& unit : units_)
    for (const std::int64_t updates : unit.updates)
      key = mix64(key ^ static_cast<std::uint64_t>(slots_.front().updates - updates));
  return key;
}

void Optimizer::set_scalars(float lr, std::int64_t step_number) {
  if (step_number < 1)
    throw UsageError(fmt::format("the optimizer's step has the number {}", step_number), "count steps from 1");
  if (!std::isfinite(lr) || lr < 0)
    throw UsageError(fmt::format("the learning rate is {}", lr), "pass a finite number, 0 or above");
  set_slots();
  std::vector<StepScalars> values;
  for (const auto& [updates, lr_scale] : slots_) {
    StepScalars scalars{.lr = lr * lr_scale,
                        .bias_correction1 = 1,
                        .bias_correction2 = 1,
                        .clip_coefficient = 1,
                        .grad_norm = 0,
                        .skip = 0};
    set_corrections(scalars, updates);
    values.push_back(scalars);
  }
  const Buffer out = all_scalars();
  Context& context = executor_.context();
  context.launch({"step_scalars", {}, {out}}, upload_of(context.kernels(), out, std::move(values)));
  executor_.order_check().set("learning rate", fmt::to_string(lr));
  executor_.order_check().set("number of the step", fmt::to_string(step_number));
}

/// Frozen parameters take part in nothing.
std::vector<Optimizer::Range> Optimizer::trained(const std::vector<Range>& ranges) {
  std::vector<Range> trained;
  std::copy_if(ranges.begin(), ranges.end(), std::back_inserter(trained),
               [](const Range& range) { return range.parameter->is_trainable(); });
  return trained;
}

void Optimizer::set_corrections(StepScalars&, std::int64_t) const {}

/// What the host keeps of a unit and its state: in this order in its window.
HostLink::Window Optimizer::load(std::size_t unit) {
  const FlatParameter& flat = executor_.units()[unit];
  std::vector<Buffer> kept;
  if (flat.has_masters_on_host()) kept.push_back(flat.master_buffer());
  for (std::size_t i = 0; is_on_host(unit) && i < state_names_.size(); ++i) kept.push_back(state(i, unit));
  if (flat.host_grad) kept.push_back(flat.kept_grad_buffer());
  HostLink::Window window = executor_.link().load(flat.name, kept);
  if (flat.host_grad) window.parts.back().is_written = false;
  return window;
}

/// While one unit is updated, what the host keeps of the next comes and that of the last goes.
void Optimizer::update_units(const std::vector<std::size_t>& units) {
  HostLink::Window next;
  if (!units.empty()) next = load(units.front());
  for (std::size_t i = 0; i < units.size(); ++i) {
    HostLink::Window window = std::exchange(next, {});
    if (i + 1 < units.size()) next = load(units[i + 1]);
    update_unit(units[i], std::move(window));
  }
}

void Optimizer::update_unit(std::size_t unit, HostLink::Window window) {
  Context& context = executor_.context();
  const FlatParameter& flat = executor_.units()[unit];
  const std::size_t first = flat.has_masters_on_host() ? 1 : 0;  // part of the window that is state
  context.stream().wait(window.arrived);
  const Buffer master = first > 0 ? window[0] : flat.master_buffer(),
               grad = flat.host_grad ? window[window.parts.size() - 1] : flat.held_grad_buffer(),
               compute_copy = flat.compute_copy_buffer();
  std::vector<Buffer> reads{master, grad}, writes{master}, states;
  for (std::size_t i = 0; i < state_names_.size(); ++i) {
    states.push_back(is_on_host(unit) ? window[first + i] : state(i, unit));
    reads.push_back(states.back());
    writes.push_back(states.back());
  }
  reads.push_back(all_scalars());
  const bool is_at_random = flat.precision.rounds_stochastically;
  std::vector<std::pair<Slice, Buffer>> slices;  // with the copy that is made behind it
  std::vector<StochasticRounding> roundings;
  for (const Range& range : trained(units_[unit].held)) {
    const auto part = [&](const Buffer& all) { return all.slice(range.offset, range.count); };
    const Buffer copy = compute_copy.empty() ? Buffer{} : part(compute_copy);
    Slice slice{part(master),
                part(grad),
                copies() && !is_at_random ? copy : Buffer{},
                {},
                scalars(place_of({units_[unit].updates[range.view], range.lr_scale})),
                range.weight_decay};
    for (std::size_t i = 0; i < state_names_.size(); ++i) slice.state.push_back(part(states[i]));
    if (!copy.empty()) writes.push_back(copy);  // its padding stays zero
    slices.emplace_back(std::move(slice), copies() && !is_at_random ? Buffer{} : copy);
    roundings.push_back(range.rounding);
  }
  context.launch({kind_ + ":" + flat.name, std::move(reads), std::move(writes)},
                 [&kernels = context.kernels(), update = slice_update(), slices = std::move(slices),
                  roundings = std::move(roundings), is_at_random](ExecContext& exec) {
                   for (std::size_t i = 0; i < slices.size(); ++i) {
                     const auto& [slice, copy] = slices[i];
                     update(exec, slice);
                     if (copy.empty()) continue;
                     is_at_random ? kernels.stochastic_cast(exec, copy, slice.master, roundings[i])
                                  : kernels.cast(exec, copy, slice.master);
                   }
                 });
  executor_.link().store(std::move(window));
}

void Optimizer::update() {
  executor_.step().check_update();
  GradNorm::take_gradients(executor_);
  norm_->sum();
  for (std::int64_t slot = 0; slot < std::ssize(slots_); ++slot) norm_->set_clip(scalars(slot), options_.clip);
  count_skipped();
  std::vector<std::size_t> due;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    const FlatParameter& flat = executor_.units()[unit];
    for (std::size_t i = 0; i < flat.parameters.size(); ++i)
      units_[unit].is_updated[i] = flat.grad_is_written && flat.parameters[i]->is_trainable();
    if (flat.grad_is_written) due.push_back(unit);
  }
  update_units(due);
  count_updates();
  executor_.clear_gradients();
  executor_.masters_updated();
}

void Optimizer::count_updates() {
  for (Unit& unit : units_) {
    for (std::size_t i = 0; i < unit.updates.size(); ++i) unit.updates[i] += std::int64_t{unit.is_updated[i]};
  }
}

void Optimizer::count_skipped() {
  Context& context = executor_.context();
  const Buffer count = skips(), skip = scalars(0).slice(offsetof(StepScalars, skip) / sizeof(float), 1);
  context.launch(
      {"count_skipped", {count, skip}, {count}},
      [&kernels = context.kernels(), count, skip](ExecContext& exec) { kernels.add(exec, count, count, skip); });
}

std::int64_t Optimizer::skipped() const {
  const HostView count(executor_.context(), executor_.context().stream(), skips());
  return static_cast<std::int64_t>(*count.as<float>());
}

void Optimizer::report_skipped() {
  if (executor_.rank() != 0) return;
  launch_on_host(executor_.context(), {"report_skipped", {skips()}, {}},
                 [has_reported = has_reported_, name = name_](ExecContext&, const std::vector<Buffer>& reads) {
                   if (*has_reported || *reads[0].as<float>() == 0) return;
                   *has_reported = true;
                   fmt::print(stderr,
                              "zshard: warning: an optimizer's step was skipped, since the gradient was not finite; "
                              "{}::skipped() counts such steps\n",
                              name);
                 });
}

}  // namespace zs
