#include "runtime/shard/execute/step_state.h"

#include <algorithm>

#include "runtime/base/usage_error.h"

namespace zs {
namespace {

constexpr std::string_view kUpdate = "the optimizer's step";

bool has_sum(const FlatParameter& unit) { return unit.grad_is_written || unit.sum_is_written; }

bool is_accumulating(const FlatParameter& unit) {
  return unit.is_parked() || std::any_of(unit.parameters.begin(), unit.parameters.end(),
                                         [](const Parameter* parameter) { return parameter->grad().data != nullptr; });
}

}  // namespace

void StepState::begin_micro_batch(Mode mode) {
  mode_ = mode;
  is_open_ = true;
  had_sum_.clear();
  for (const FlatParameter& unit : units_) had_sum_.push_back(has_sum(unit));
}

void StepState::end_micro_batch(bool is_last) {
  is_open_ = false;
  if (mode_ != Mode::train) return;
  ++micro_batches_;
  ++micro_batch_;
  has_ended_ = is_last;
  if (is_last) set_steps_done(steps_done_ + 1);
}

void StepState::drop_step() {
  set_steps_done(steps_done_ - (has_ended_ ? 1 : 0));
  end_step();
}

void StepState::check_no_scope(std::string_view call) const {
  for (const FlatParameter& unit : units_) check_no_scope(call, unit);
}

void StepState::check_no_scope(std::string_view call, const FlatParameter& unit) {
  if (unit.is_in_scope)
    throw UsageError(fmt::format("{} while an UnshardScope of unit {} lives", call, unit.name), "end that scope first");
}

void StepState::check_no_micro_batch(std::string_view call) const {
  check_no_scope(call);
  if (!is_open_) return;
  throw UsageError(fmt::format("{} within {}", call, open_name()),
                   "end it first: by end_micro_batch(), or with the block of its MicroBatch");
}

void StepState::check_not_swapped(std::string_view call) const {
  if (!swapped_.empty())
    throw UsageError(fmt::format("{} while the average of {} is in the place of the weights", call, swapped_),
                     "call swap_average() again before it");
}

void StepState::check_between_steps(std::string_view call, Weights weights) const {
  check_no_micro_batch(call);
  if (weights == Weights::trained) check_not_swapped(call);
  const auto holder = std::find_if(units_.begin(), units_.end(),
                                   [](const FlatParameter& unit) { return has_sum(unit) || is_accumulating(unit); });
  if (holder == units_.end()) return;
  throw UsageError(
      fmt::format("{} in the middle of a step: the gradients of unit {} have not been taken by an optimizer's step",
                  call, holder->name),
      "call it behind the optimizer's step, or drop the gradients by ShardedRuntime::abandon_step()");
}

void StepState::check_update() const {
  check_no_micro_batch(kUpdate);
  const bool has_gradients = std::any_of(units_.begin(), units_.end(), has_sum);
  if (micro_batches_ == 0 && !has_gradients) {
    throw UsageError(fmt::format("{} has nothing to do: no training micro-batch has ended since the last one", kUpdate),
                     "call it once, behind a step's last micro-batch");
  }
  if (micro_batches_ > 0 && !has_ended_) {
    throw UsageError(
        fmt::format("{} before the step's last micro-batch: {} ended, none of them begun with is_last = true", kUpdate,
                    micro_batches_),
        "say so of the last one: micro_batch({.last = true}), or is_last = true for begin_micro_batch()");
  }
  for (const FlatParameter& unit : units_) {
    if (!unit.is_unsharded()) continue;
    throw UsageError(fmt::format("the weights of unit {} are updated while it is unsharded", unit.name),
                     "call reshard() for what was unsharded by hand first");
  }
}

void StepState::check_has_gradient() const {
  if (std::any_of(units_.begin(), units_.end(), has_sum)) return;
  if (const auto holder = std::find_if(units_.begin(), units_.end(), is_accumulating); holder != units_.end()) {
    throw UsageError(fmt::format("{} has no reduced gradient: those of unit {} were accumulated under NoSync", kUpdate,
                                 holder->name),
                     "end the NoSync before the step's last micro-batch begins");
  }
  throw UsageError(fmt::format("{} has no gradient: no parameter took part in a backward", kUpdate),
                   "call backward(loss) in each micro-batch, and train at least one parameter");
}

}  // namespace zs
