// Services of an Executor for those who use a unit's gradient while backward goes on.
#include <algorithm>
#include <utility>

#include "runtime/base/usage_error.h"
#include "runtime/shard/execute/executor.h"

namespace zs {

void Executor::forget_hook(int number) { reduced_hooks_.erase(number); }

Buffer Executor::take_gradient(int unit_index) {
  FlatParameter& unit = units_.at(static_cast<std::size_t>(unit_index));
  if (unit.host_grad)
    throw UsageError(fmt::format("the gradient of unit {} is taken, which the host keeps", unit.name),
                     "leave has_gradients_on_host out, or read it in an UnshardScope with_gradients");
  if (!unit.grad_is_written)
    throw UsageError(fmt::format("the gradient of unit {} is taken, and there is none", unit.name),
                     "take it when on_reduced() says so, once");
  if (!unit.grad_is_divided) {
    reducer_.gather_whole(unit);
    reducer_.wait_reductions();
    divide_sum(unit);
    unit.grad_is_divided = true;
  }
  return unit.held_grad_buffer();
}

void Executor::updated_in_backward(int unit_index) {
  FlatParameter& unit = units_.at(static_cast<std::size_t>(unit_index));
  StepState::check_no_scope("an update in backward", unit);
  context_.stream().record(unit.updated);
  updated_ = unit_index;
  has_initial_weights_ = false;
  reducer_.clear(unit);
  unit.grad_is_divided = false;
  if (unit.has_transient_grad) unit.grad.release(context_.stream());
}

void Executor::make_gradients_transient(std::string_view owner) {
  for (FlatParameter& unit : units_) {
    if (unit.is_zero_copy()) {
      throw UsageError(fmt::format("{} in backward: other ranks may still read the weights of unit {} where they lie",
                                   owner, unit.name),
                       "set ShardOptions::zero_copy = false");
    }
  }
  if (checks_all_written_) {
    throw UsageError(
        fmt::format("{} in backward: weights change while what was gathered of them is still compared", owner),
        "leave checks_writes out, or in_backward");
  }
  for (const FlatParameter& unit : units_) {
    if (!unit.placement->options.residence.has_any()) continue;
    throw UsageError(fmt::format("{} in backward: the host keeps shards of unit {}", owner, unit.name),
                     "leave out the residence, or in_backward");
  }
  for (FlatParameter& unit : units_) {
    unit.has_transient_grad = true;
    unit.grad.release(context_.stream());
  }
}

void Executor::end_transient_gradients() {
  for (FlatParameter& unit : units_) unit.has_transient_grad = false;
}

void Executor::keep_gradients() {
  deferred_updates_.settle();
  for (FlatParameter& unit : units_) {
    const MemoryOwner owner(context_.device().memory(), unit.name);
    if (!unit.grad && !unit.host_grad && !unit.is_frozen)
      unit.grad = comm_pool_.acquire(unit.layout->held_elems() * size_of(DType::f32), context_.stream(), "grad_shard");
  }
}

int Executor::on_reduced(std::function<void(int unit)> hook) {
  reduced_hooks_.emplace(hooks_, std::move(hook));
  return hooks_++;
}

void Executor::report_reduced(int unit) {
  reported_.push_back(unit);
  for (const auto& [number, hook] : reduced_hooks_) hook(unit);
}

void Executor::report_rest() {
  for (int unit = 0; has_reduced_hook() && unit < static_cast<int>(units_.size()); ++unit) {
    const bool is_reported = std::find(reported_.begin(), reported_.end(), unit) != reported_.end();
    if (!is_reported && units_[static_cast<std::size_t>(unit)].grad_is_written) report_reduced(unit);
  }
}

void Executor::check_no_update_is_open(std::string_view call) const {
  if (!updated_) return;
  throw UsageError(fmt::format("{} while the last one's updates in backward have not ended, that of unit {} among them",
                               call, units_[static_cast<std::size_t>(*updated_)].name),
                   "call end_step() behind a step's last micro-batch");
}

void Executor::drop_reports() {
  reported_.clear();
  if (!updated_) return;
  const std::string name = units_[static_cast<std::size_t>(*std::exchange(updated_, std::nullopt))].name;
  throw UsageError(fmt::format("the step was abandoned when the weights of unit {} had been updated in backward", name),
                   "load a checkpoint, or update behind the step's last micro-batch");
}

}  // namespace zs
