#include "runtime/shard/sharded_runtime.h"

#include <fmt/core.h>

#include <cstdio>

namespace zs {

ShardedRuntime::ShardedRuntime(Context& context, World& world, const ShardOptions& options)
    : context_(context),
      options_(options),
      executor_(context, world, ShardScheme(options.scheme, world.rank(), world.size()), options.precision) {}

ShardedRuntime::~ShardedRuntime() {
  for (auto& [parameter, unit] : unit_of_) {
    auto* owned = const_cast<Parameter*>(parameter);
    owned->set_owner(nullptr);
    owned->unbind();
    owned->unbind_grad();
  }
}

int ShardedRuntime::add_unit(std::string name, const std::vector<Parameter*>& parameters) {
  ZS_CHECK(!scheduler_, "unit {} is added after the first micro-batch", name);
  const int unit = static_cast<int>(names_.size());
  for (Parameter* parameter : parameters) {
    ZS_CHECK(parameter->owner() == nullptr, "parameter {} already belongs to a unit", parameter->name());
    parameter->set_owner(this);
    unit_of_[parameter] = unit;
  }
  names_.push_back(name);
  executor_.add_unit(std::move(name), parameters, options_.seed);
  return unit;
}

Scheduler& ShardedRuntime::scheduler() {
  if (!scheduler_) scheduler_ = std::make_unique<Scheduler>(names_, executor_.scheme().schedule(options_.schedule));
  return *scheduler_;
}

void ShardedRuntime::run(const std::vector<Action>& actions) {
  actions_.insert(actions_.end(), actions.begin(), actions.end());
  if (log_) log_->insert(log_->end(), actions.begin(), actions.end());
  order_check_.note(actions, mode_);
  executor_.run(actions);
}

void ShardedRuntime::begin_micro_batch(Mode mode, bool is_last) {
  actions_.clear();
  mode_ = mode;
  is_last_ = is_last;
  scheduler().begin_micro_batch(mode, is_last);
}

void ShardedRuntime::before_forward(int unit) {
  run(context_.mode().runs_again ? scheduler().before_recompute(unit) : scheduler().before_forward(unit));
}

void ShardedRuntime::after_forward(int unit) {
  if (!context_.mode().runs_again) run(scheduler().after_forward(unit));
}

int ShardedRuntime::pending_uses(int unit) const {
  int uses = 0;
  for (const Parameter* parameter : executor_.units()[static_cast<std::size_t>(unit)].parameters) uses += parameter->pending_uses();
  return uses;
}

void ShardedRuntime::before_backward(Parameter& parameter) {
  const int unit = unit_of(parameter);
  context_.device().memory().set_owner(name(unit));
  run(scheduler().before_backward(unit));
}

void ShardedRuntime::after_backward(Parameter& parameter) {
  const int unit = unit_of(parameter);
  if (pending_uses(unit) == 0) run(scheduler().after_backward(unit));
}

void ShardedRuntime::end_micro_batch() {
  for (const auto& unit : executor_.units()) {
    for (const Parameter* parameter : unit.parameters) {
      ZS_CHECK(parameter->early_gradients() == 0, "a loss that computed the gradient of {} in forward was not taken backward",
               parameter->name());
    }
  }
  context_.device().memory().set_owner({});
  run(scheduler().end_micro_batch());
  if (mode_ == Mode::train && is_last_) order_check_.compare();
  for (auto& unit : executor_.units()) {
    for (Parameter* parameter : unit.parameters) parameter->clear_uses();
  }
  const std::vector<std::string> deviations = scheduler().take_deviations();
  if (!deviations.empty() && !has_warned_) {
    has_warned_ = true;
    fmt::print(stderr, "zshard: warning: rank {}: {} ran out of the recorded order; units are gathered on demand where that happens\n",
               executor_.rank(), deviations.front());
  }
}

void ShardedRuntime::abandon() {
  context_.device().memory().set_owner({});
  run(scheduler().abandon());
  order_check_.forget();
  for (auto& unit : executor_.units()) {
    for (Parameter* parameter : unit.parameters) parameter->clear_uses();
  }
  executor_.clear_gradients();
}

}  // namespace zs
