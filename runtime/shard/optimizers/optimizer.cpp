#include "runtime/shard/optimizers/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <functional>

#include "runtime/base/random.h"
#include "runtime/base/usage_error.h"
#include "runtime/tensor/host_view.h"

namespace zs {
Optimizer::Optimizer(Executor& executor, const Definition& definition, const OptimizerOptions& options)
    : executor_(executor), name_(definition.name), kind_(definition.name), definition_(definition), options_(options) {
  Context& context = executor.context();
  Stream& compute = context.stream();
  std::transform(kind_.begin(), kind_.end(), kind_.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const std::string& state : definition.state) state_names_.push_back(kind_ + "." + state);
  check_numbers();
  for (const ParameterGroup& group : options.groups) patterns_.emplace_back(group.pattern);
  if (!(options.average >= 0 && options.average < 1))
    throw UsageError(fmt::format("{}: an average with the decay {}", name_, options.average),
                     "pass 0 for none, or more and less than 1");
  if (options.average > 0 && definition.evaluation)
    throw UsageError(fmt::format("{} with an average of the weights, which it has of its own", name_),
                     "pass an average of 0");
  if (options.average > 0) state_names_.emplace_back(kAverage);
  check_groups();
  check_placement();
  start_updates_on_host();
  check_in_backward();
  if (!options.in_backward) executor.keep_gradients();
  for (const FlatParameter& unit : executor.units()) units_.push_back(make_unit(unit));
  std::vector<std::vector<float>> lr_scales;
  for (const Unit& unit : units_) lr_scales.push_back(unit.lr_scales);
  counts_.make(executor, lr_scales);
  scalars_ = context.pool().acquire(sizeof(StepScalars), compute, "scalars");
  norm_.emplace(executor, NormOptions{.order_free = options.order_free});
  if (definition.has_norms) norms_.emplace(executor);
  // Squares of a step's gradients, f64, lie there in backward, where no step is skipped
  skips_ = context.pool().acquire(size_of(DType::f64), compute, "scalars");
  context.launch({"zero_skips", {}, {skips()}},
                 [&kernels = context.kernels(), out = skips()](ExecContext& exec) { kernels.zero(exec, out); });
  if (std::any_of(executor.units().begin(), executor.units().end(),
                  [this](const FlatParameter& unit) { return is_left(unit); })) {
    marks_ = context.pool().acquire(2 * size_of(DType::f32), compute, "scalars");
    const Buffer marks = marks_.buffer(DType::f32, 2);
    context.launch({"zero_marks", {}, {marks}},
                   [&kernels = context.kernels(), marks](ExecContext& exec) { kernels.zero(exec, marks); });
  }
  OrderCheck& check = executor.order_check();
  check.set("optimizer", name_);
  for (const auto& [setting, value] : definition.settings) check.set(setting, value);
  check.set("weight decay", fmt::to_string(options.weight_decay));
  check.set("largest norm of the gradient (clip)", fmt::to_string(options.clip));
  check.set("way to sum the norm", options.order_free ? "in fixed point" : "in f64");
  if (options.average > 0) check.set("decay of the average", fmt::to_string(options.average));
  check.set("time of updates", options.in_backward ? "in backward" : "behind backward");
  std::string groups;
  for (const auto& [pattern, lr_scale, decay] : options.groups)
    groups += fmt::format("{} lr x {} decay {}; ", pattern, lr_scale, decay ? fmt::to_string(*decay) : "as the rest");
  if (!groups.empty()) check.set("groups of parameters", groups);
  if (options.in_backward) start_in_backward();
}

/// An average is updated from what is on the device. What takes a parameter as a whole, as matrices or in blocks, would
/// take a part for it.
void Optimizer::check_placement() const {
  for (const FlatParameter& unit : executor_.units()) {
    if (has_average() && unit.placement->options.residence.has_any())
      throw UsageError(fmt::format("{} with an average of the weights does not go with what the host keeps of unit {}",
                                   name_, unit.name),
                       "keep masters, gradients and moments on the device");
    if (definition_.has_norms && unit.placement->options.residence.has_any())
      throw UsageError(fmt::format("{} goes by norms of whole parameters, and the host keeps something of unit {}",
                                   name_, unit.name),
                       "keep masters, gradients and moments on the device");
    if (definition_.is_apart && unit.placement->is_partitioned())
      throw UsageError(fmt::format("{} takes parameters as a whole, and unit {} is partitioned over axis {}", name_,
                                   unit.name, unit.placement->options.partition.axis),
                       "use AdamW, SGD or Lion, or leave the partition out");
  }
}

Buffer Optimizer::grad_norm() const { return scalars(0).slice(offsetof(StepScalars, grad_norm) / sizeof(float), 1); }

void Optimizer::step(float lr, std::int64_t step_number) {
  check_time("step()", false);
  executor_.step().check_update();
  set_scalars(lr, step_number);
  update();
  report_skipped();
}

void Optimizer::set_scalars(float lr, std::int64_t step_number) {
  model_.check("set_scalars() of " + name_);
  if (step_number < 1)
    throw UsageError(fmt::format("the optimizer's step has the number {}", step_number), "count steps from 1");
  if (!std::isfinite(lr) || lr < 0)
    throw UsageError(fmt::format("the learning rate is {}", lr), "pass a finite number, 0 or above");
  executor_.step().check_not_swapped(fmt::format("a step of {}", name_));
  executor_.deferred_updates().settle();  // they go by the last ones
  executor_.context().stream().wait(scalars_read_);
  set_slots();
  std::vector<StepScalars> values;
  const auto add = [&](float rate, float clip_coefficient) {
    values.push_back({.lr = rate,
                      .bias_correction1 = 1,
                      .bias_correction2 = 1,
                      .clip_coefficient = clip_coefficient,
                      .grad_norm = 0,
                      .skip = 0});
  };
  for (const Slot& slot : slots_) add(lr * slot.lr_scale, 1);
  if (slots_.empty()) add(lr, 1);
  for (std::int64_t i = 0; options_.average > 0 && i < slot_count(); ++i) add(0, -1);
  const Buffer out = every_scalars();
  Context& context = executor_.context();
  context.launch({"step_scalars", {}, {out}}, upload_of(context.kernels(), out, std::move(values)));
  executor_.order_check().set("learning rate", fmt::to_string(lr));
  executor_.order_check().set("number of the step", fmt::to_string(step_number));
}

/// Loads what the host keeps of a unit and its state: in this order in its window.
HostLink::Window Optimizer::load(std::size_t unit) {
  const FlatParameter& flat = executor_.units()[unit];
  std::vector<Buffer> kept;
  if (flat.has_masters_on_host()) kept.push_back(flat.master_buffer());
  for (std::size_t i = 0; is_on_host(unit) && i < state_names_.size(); ++i)
    if (const Buffer state = kept_state(i, unit); !state.empty()) kept.push_back(state);
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

std::vector<Optimizer::Part> Optimizer::parts(std::size_t unit, bool are_apart, const Held& here) const {
  const FlatParameter& flat = executor_.units()[unit];
  const Buffer compute_copy = flat.compute_copy_buffer();
  const bool is_cast = !makes_copies_ || flat.precision.rounds_stochastically;
  const std::vector<Range>& held = units_[unit].held;
  std::vector<Part> parts;
  for (std::size_t i = 0; i < held.size(); ++i) {
    const Range& range = held[i];
    const bool is_apart = definition_.is_apart && definition_.is_apart(flat.layout->views()[range.view]);
    const std::int64_t slot = units_[unit].slots[range.view];
    if (slot == kNotUpdated || is_apart != are_apart) continue;
    const auto part = [&](const Buffer& all) { return all.slice(range.offset, range.count); };
    const Buffer copy = compute_copy.empty() ? Buffer{} : part(compute_copy);
    Slice slice{part(here.master),
                part(here.grad),
                is_cast ? Buffer{} : copy,
                {},
                scalars(slot),
                range.weight_decay,
                range.part(),
                norms_ ? norms_->of(unit, range.view) : Buffer{}};
    for (std::size_t which = 0; which < here.states.size(); ++which) {
      const std::int64_t offset = range.state_offsets[which];
      slice.state.push_back(offset < 0 ? Buffer{} : here.states[which].slice(offset, count_of(which, range)));
    }
    parts.push_back({std::move(slice), is_cast ? copy : Buffer{}, range.rounding, flat.precision.rounds_stochastically,
                     range.view, slot});
  }
  return parts;
}

void Optimizer::launch_parts(OpInfo info, std::vector<Part> parts, const UnitUpdate& update) const {
  if (!update)
    throw UsageError(fmt::format("{} does not say what becomes of a slice", name_), "override slice_update()");
  std::vector<Slice> slices;
  for (const Part& part : parts) {  // the padding of a copy stays zero
    if (const Buffer& copy = part.cast.empty() ? part.slice.copy : part.cast; !copy.empty())
      info.writes.push_back(copy);
    slices.push_back(part.slice);
  }
  const Context& context = executor_.context();
  context.launch(std::move(info), [&kernels = context.kernels(), update, slices = std::move(slices),
                                   parts = std::move(parts)](ExecContext& exec) {
    update(exec, slices);
    for (const Part& part : parts) {
      if (part.cast.empty()) continue;
      part.is_cast_at_random ? kernels.stochastic_cast(exec, part.cast, part.slice.master, part.rounding)
                             : kernels.cast(exec, part.cast, part.slice.master);
    }
  });
}

Optimizer::UnitUpdate Optimizer::of_each(Update update) {
  if (!update) return {};
  return [update = std::move(update)](ExecContext& exec, const std::vector<Slice>& slices) {
    for (const Slice& slice : slices) update(exec, slice);
  };
}

std::vector<UpdateRange> Optimizer::Slice::ranges_of(const std::vector<Slice>& slices) {
  std::vector<UpdateRange> ranges;
  for (const auto& [master, grad, copy, state, scalars, weight_decay, part, norms] : slices)
    ranges.push_back({master, grad, copy, state.empty() ? Buffer{} : state[0], state.size() < 2 ? Buffer{} : state[1],
                      scalars, weight_decay});
  return ranges;
}

Optimizer::Held Optimizer::held_of(std::size_t unit, const HostLink::Window& window) const {
  const FlatParameter& flat = executor_.units()[unit];
  std::size_t next = 0;  // part of the window
  Held held{flat.has_masters_on_host() ? window[next++] : flat.master_buffer(), {}, {}};
  for (std::size_t i = 0; i < definition_.state.size(); ++i) {
    const Buffer state = kept_state(i, unit);
    held.states.push_back(is_on_host(unit) && !state.empty() ? window[next++] : state);
  }
  held.grad = flat.host_grad ? window[window.parts.size() - 1] : flat.held_grad_buffer();
  return held;
}

void Optimizer::update_unit(std::size_t unit, HostLink::Window window) {
  executor_.context().stream().wait(window.arrived);
  const MemoryOwner owner(executor_.context().device().memory(), executor_.units()[unit].name);
  const Held held = held_of(unit, window);
  launch_update(unit, held);
  if (has_window(unit) && definition_.is_apart) update_apart({Apart{unit, parts(unit, true, held)}});
  executor_.link().store(std::move(window));
}

void Optimizer::launch_update(std::size_t unit, const Held& held) const {
  std::vector<Part> own = parts(unit, false, held);
  if (own.empty()) return;
  OpInfo info{kind_ + ":" + executor_.units()[unit].name, {held.master, held.grad}, {held.master}};
  for (const Buffer& state : held.states) {
    if (state.empty()) continue;
    info.reads.push_back(state);
    info.writes.push_back(state);
  }
  info.reads.push_back(all_scalars());
  if (norms_) info.reads.push_back(norms_->all());
  launch_parts(std::move(info), std::move(own), update_);
}

/// Notes, for an update that is left, what holds at this step: parameters may be frozen, and counts go on, before it is
/// enqueued. Frozen parameters take part in nothing.
void Optimizer::note_updated(std::size_t unit) {
  const FlatParameter& flat = executor_.units()[unit];
  update_ = unit_update();
  if (is_updated_on_host(unit)) {
    is_for_host_ = true;
    host_update_ = unit_update();
    is_for_host_ = false;
  }
  makes_copies_ = copies();
  for (std::size_t i = 0; i < flat.parameters.size(); ++i) {
    const bool is_updated = flat.grad_is_written && flat.parameters[i]->is_trainable();
    units_[unit].slots[i] = is_updated ? slot_of(unit, i) : kNotUpdated;
  }
}

void Optimizer::update(const Buffer& weight) {
  check_time("update()", false);
  executor_.step().check_update();
  GradNorm::take_gradients(executor_);
  norm_->sum();
  norm_->set_clip(scalars(0), options_.clip);
  count_skipped(weight);
  correct_scalars();
  std::vector<std::size_t> now, now_on_host;
  std::vector<int> left;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    const FlatParameter& flat = executor_.units()[unit];
    note_updated(unit);
    if (flat.grad_is_written && is_left(flat))
      left.push_back(static_cast<int>(unit));
    else if (flat.grad_is_written)
      (is_updated_on_host(unit) ? now_on_host : now).push_back(unit);
  }
  if (norms_) take_norms(now);
  update_units(now);
  update_on_host_now(now_on_host);
  if (definition_.is_apart) {
    std::vector<Apart> apart;
    for (const std::size_t unit : now)
      if (!has_window(unit)) apart.push_back({unit, parts(unit, true, held_of(unit, {}))});
    update_apart(std::move(apart));
  }
  if (options_.average > 0) update_average();
  counts_.count([this](std::size_t unit, std::size_t i) { return units_[unit].slots[i]; }, all_scalars());
  note_update();
  executor_.clear_gradients();
  executor_.masters_updated();
  leave_updates(left);
}

/// Counts a skipped step. Where there is a weight, and it is 0, it sets `skip` first.
void Optimizer::count_skipped(const Buffer& weight) {
  Context& context = executor_.context();
  const Buffer count = skips(), skip = scalars(0).slice(offsetof(StepScalars, skip) / sizeof(float), 1);
  if (!weight.empty()) {
    context.launch({"skip_without", {weight, skip}, {skip}}, [&kernels = context.kernels(), in = Strided{weight, {1}},
                                                              out = Strided{skip, {1}}](ExecContext& exec) {
      kernels.map(exec,
                  {.op = MapOp::where, .shape = {1}, .out = out, .in = {in, out, Strided{}}, .constants = {0, 0, 1}});
    });
  }
  context.launch(
      {"count_skipped", {count, skip}, {count}},
      [&kernels = context.kernels(), count, skip](ExecContext& exec) { kernels.add(exec, count, count, skip); });
}

std::int64_t Optimizer::skipped() const {
  model_.check("skipped() of " + name_);
  if (options_.in_backward) return 0;
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
