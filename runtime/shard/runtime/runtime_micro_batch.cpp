// Course of a micro-batch: its begin and end, the hooks of units between them, and what drops it.
#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "runtime/base/standard_streams.h"
#include "runtime/base/usage_error.h"
#include "runtime/shard/runtime/sharded_runtime.h"

namespace zs {
namespace {

/// A sum of two steps is finished twice: one that goes on would count the last step's once more, or lose it.
void check_sums_are_taken(Executor& executor) {
  if (!executor.step().has_ended()) return;
  executor.check_no_update_is_open("a step begins");
  for (const FlatParameter& unit : executor.units()) {
    if (!unit.grad_is_written || unit.placement->second == Placement::SecondStep::none) continue;
    throw UsageError(
        fmt::format("a step begins while no optimizer has taken the gradients of the last one, those of unit {}",
                    unit.name),
        "call the optimizer's step, or abandon_step(); is_last belongs to a step's last micro-batch alone");
  }
}

void check_modules(const Executor& executor) {
  for (const FlatParameter& unit : executor.units())
    for (const Parameter* parameter : unit.parameters)
      if (parameter->owner() == nullptr)
        throw UsageError(fmt::format("the module of parameter {} ended before its model", parameter->name()),
                         "let modules outlive the model: declare them before it");
}

}  // namespace

void ShardedRuntime::run(const std::vector<Action>& actions) {
  actions_.insert(actions_.end(), actions.begin(), actions.end());
  moments_.resize(actions_.size(), context_.device().trace().entries().size());
  if (log_) log_->insert(log_->end(), actions.begin(), actions.end());
  executor_.order_check().note(actions, mode_);
  const bool reports = executor_.has_reduced_hook() && mode_ == Mode::train && is_last_;
  reports ? run_and_report(actions) : executor_.run(actions);
}

void ShardedRuntime::begin_micro_batch(Mode mode, bool is_last, std::optional<std::int64_t> first_sample) {
  executor_.step().check_no_scope("begin_micro_batch()");
  check_modules(executor_);
  if (mode == Mode::train) check_sums_are_taken(executor_);
  if (mode == Mode::train) executor_.step().check_not_swapped("a micro-batch of training");
  if (first_sample.value_or(0) < 0)
    throw UsageError(fmt::format("begin_micro_batch(): the first sample is {}", *first_sample),
                     "count the samples of a step from 0");
  check_mode(mode);
  check_frozen();
  context_.check_thread("begin_micro_batch()");
  scheduler().begin_micro_batch(mode, is_last);
  claim_.emplace(context_);
  executor_.order_check().begin_micro_batch();
  executor_.write_check().compare_late();
  executor_.step().begin_micro_batch(mode);
  actions_.clear();
  moments_.clear();
  mode_ = mode;
  is_last_ = is_last;
  first_sample_ = first_sample;
  has_backward_ = false;
  for (std::size_t unit = 0; unit < executor_.units().size(); ++unit) {
    const auto& parameters = executor_.units()[unit].parameters;
    const bool is_frozen =
        std::none_of(parameters.begin(), parameters.end(), [](const Parameter* p) { return p->is_trainable(); });
    scheduler().set_frozen(static_cast<int>(unit), is_frozen);
    executor_.set_accumulates(static_cast<int>(unit), !scheduler().is_due(static_cast<int>(unit)));
  }
  executor_.set_mode(mode == Mode::eval);
}

void ShardedRuntime::check_frozen() const {
  for (const FlatParameter& unit : executor_.units()) {
    const auto trained = std::find_if(unit.parameters.begin(), unit.parameters.end(),
                                      [](const Parameter* parameter) { return parameter->is_trainable(); });
    if (!unit.is_frozen || trained == unit.parameters.end()) continue;
    throw UsageError(
        fmt::format("parameter {} is to be trained, and its unit {} is frozen", (*trained)->name(), unit.name),
        "leave is_frozen out of the unit's policy, and freeze its parameters by set_trainable(false)");
  }
}

void ShardedRuntime::check_mode(Mode mode) {
  if (scheduler().is_in_micro_batch()) return;  // an open micro-batch is another mistake
  for (int unit = 0; unit < scheduler().size(); ++unit) {
    const FlatParameter& flat = executor_.units()[static_cast<std::size_t>(unit)];
    const bool is_full = mode == Mode::eval && flat.precision.is_full_in_evaluation;
    const bool is_encoded = flat.format() != nullptr;
    if (flat.gathered_dtype == (is_full ? DType::f32 : flat.precision.param) &&
        is_encoded == (flat.precision.gather_format != nullptr && !is_full))
      continue;
    if (scheduler().state(unit) == UnitState::sharded && scheduler().shard_state(unit) == ShardState::none) continue;
    throw UsageError(
        fmt::format("unit {} is gathered in {}{}, and an evaluation in full precision begins or ends", name(unit),
                    name_of(flat.gathered_dtype), is_encoded ? fmt::format(" from {}", flat.format()->name()) : ""),
        "evaluate between steps, and reshard what was unsharded by hand");
  }
}

void ShardedRuntime::before_forward(int unit) {
  check_no_scope("the forward of a unit", unit);
  run(context_.mode().runs_again ? scheduler().before_recompute(unit) : scheduler().before_forward(unit));
}

void ShardedRuntime::after_forward(int unit) {
  check_no_scope("the end of a forward", unit);
  if (!context_.mode().runs_again) run(scheduler().after_forward(unit));
}

int ShardedRuntime::pending_uses(int unit) const {
  int uses = 0;
  for (const Parameter* parameter : executor_.units()[static_cast<std::size_t>(unit)].parameters)
    uses += parameter->pending_uses();
  return uses;
}

void ShardedRuntime::before_backward(Parameter& parameter) {
  const int unit = unit_of(parameter).value();
  check_no_scope("the backward of a unit", unit);
  context_.device().memory().set_owner(name(unit));
  has_backward_ = true;
  run(scheduler().before_backward(unit));
}

void ShardedRuntime::after_backward(Parameter& parameter) {
  const int unit = unit_of(parameter).value();
  if (pending_uses(unit) == 0) run(scheduler().after_backward(unit));
}

void ShardedRuntime::end_micro_batch() {
  for (const auto& unit : executor_.units()) {
    for (const Parameter* parameter : unit.parameters) {
      if (parameter->early_gradients() == 0) continue;
      throw UsageError(
          fmt::format("a loss that computed the gradient of {} in forward was not taken backward", parameter->name()),
          "call backward() with it before end_micro_batch(), or compute it under a NoGradGuard");
    }
  }
  context_.device().memory().set_owner({});
  run(scheduler().end_micro_batch());
  executor_.deferred_updates().settle();  // updates of units that took no part
  report_pending();
  if (mode_ == Mode::train && is_last_) executor_.report_rest();
  executor_.settle_written();
  executor_.step().end_micro_batch(is_last_);
  claim_.reset();
  if (is_last_) executor_.set_mode(false);  // gathers by hand come before a micro-batch begins
  if (mode_ == Mode::train && is_last_) executor_.order_check().close_step();
  for (auto& unit : executor_.units()) {
    for (Parameter* parameter : unit.parameters) parameter->clear_uses();
  }
  warn();
}

void ShardedRuntime::check_backward() const {
  if (mode_ != Mode::train || has_backward_) return;
  throw UsageError("the micro-batch ends without a backward",
                   "call backward() of the loss within it, or make an evaluation of it");
}

void ShardedRuntime::warn() {
  const std::vector<std::string> deviations = scheduler().take_deviations(), unused = scheduler().take_unused_gathers();
  if (!deviations.empty() && !has_warned_) {
    has_warned_ = true;
    print_to_stderr(
        "zshard: warning: rank {}: {} ran out of the recorded order; units are gathered on demand where that happens\n",
        executor_.rank(), deviations.front());
  }
  if (!unused.empty() && !has_warned_unused_) {
    has_warned_unused_ = true;
    print_to_stderr("zshard: warning: rank {}: {} was gathered ahead and did not run in that micro-batch\n",
                    executor_.rank(), unused.front());
  }
}

void ShardedRuntime::abandon() {
  executor_.step().check_no_scope("abandon()");
  const std::vector<int> reduced = scheduler().reduced();
  for (int unit = 0; unit < scheduler().size(); ++unit) {
    const bool is_reduced = std::find(reduced.begin(), reduced.end(), unit) != reduced.end();
    if (!scheduler().is_mixed(unit) && !(is_reduced && executor_.step().had_sum(static_cast<std::size_t>(unit))))
      continue;
    abandon_step();
    throw UsageError(fmt::format("the micro-batch was abandoned when it had added to the gradient of unit {}, beside "
                                 "those of earlier micro-batches: "
                                 "all gradients of the step are dropped",
                                 name(unit)),
                     "begin the step again");
  }
  drop(reduced, false);
  executor_.drop_reports();
}

void ShardedRuntime::abandon_step() {
  executor_.step().check_no_scope("abandon_step()");
  std::vector<int> units(executor_.units().size());
  std::iota(units.begin(), units.end(), 0);
  drop(units, true);
  executor_.step().drop_step();
  executor_.drop_reports();
}

void ShardedRuntime::drop(const std::vector<int>& units, bool of_step) {
  const bool is_open = scheduler().is_in_micro_batch();
  claim_.reset();
  context_.device().forget_thrown();
  reduced_.reset();
  context_.device().memory().set_owner({});
  run(scheduler().abandon(of_step));
  executor_.set_mode(false);
  if (is_open) executor_.order_check().forget();
  executor_.step().drop_micro_batch();
  for (auto& unit : executor_.units()) {
    for (Parameter* parameter : unit.parameters) parameter->clear_uses();
  }
  executor_.abandon_gradients(units);
  executor_.forget_published();
}

void ShardedRuntime::refuse_use(const Parameter& parameter) const {
  const int unit = unit_of(parameter).value();
  const std::string what = fmt::format("parameter {} is used while it is not unsharded: ", parameter.name());
  if (!scheduler_ || !scheduler_->is_in_micro_batch()) {
    throw UsageError(what + "no micro-batch is running", "read and write it between steps by UnshardScope::value()");
  }
  if (scheduler_->has_run(unit) && !scheduler_->unshards_in_backward(unit)) {
    throw UsageError(
        fmt::format("{}its unit {} is not gathered for its backward, or its forward is over", what, name(unit)),
        "set_unshard_in_backward(true) where an op's backward needs it");
  }
  if (scheduler_->has_run(unit)) {
    throw UsageError(fmt::format("{}the forward of its unit {} is over", what, name(unit)),
                     "use it within that unit's forward, or in one that wraps it");
  }
  throw UsageError(fmt::format("{}its unit {} has not been entered in this micro-batch", what, name(unit)),
                   "call its module, `y = layer(x)`, where it is a Layer; else begin its forward with `const "
                   "ForwardScope scope = enter();`");
}

}  // namespace zs
