#include "runtime/shard/full_parameters.h"

#include <exception>

#include "runtime/base/usage_error.h"

namespace zs {

FullParameters::FullParameters(ShardedRuntime& runtime, int unit)
    : runtime_(runtime), unit_(unit), exceptions_(std::uncaught_exceptions()) {
  Scheduler& scheduler = runtime.scheduler();
  const auto refuse = [&](const char* when, const char* what_to_do) {
    throw UsageError(fmt::format("unit {} is made full {}", runtime.name(unit), when), what_to_do);
  };
  if (scheduler.is_in_micro_batch()) refuse("within a micro-batch", "do so between steps");
  if (runtime.executor().units().at(static_cast<std::size_t>(unit)).is_for_writing)
    refuse("while another FullParameters of it lives", "end that scope first");
  if (scheduler.state(unit) != UnitState::sharded || scheduler.shard_state(unit) != ShardState::none)
    refuse("while it is gathered", "reshard it first, or end the step");
  runtime.executor().open_scope(unit);
  runtime.unshard(unit).wait();
}

void FullParameters::write_back() { runtime_.executor().write_back(unit_); }

FullParameters::~FullParameters() noexcept(false) {
  if (std::uncaught_exceptions() == exceptions_) runtime_.executor().check_written(unit_);
  runtime_.run(runtime_.scheduler().reshard(unit_));
  runtime_.executor().close_scope(unit_);
}

void broadcast_parameters(ShardedRuntime& runtime, int root) {
  Executor& executor = runtime.executor();
  if (root < 0 || root >= executor.ranks()) {
    throw UsageError(fmt::format("broadcast_parameters() from rank {} of {}", root, executor.ranks()));
  }
  runtime.adopt_seed(root);
  for (int unit = 0; unit < static_cast<int>(executor.units().size()); ++unit) {
    FullParameters full(runtime, unit);
    for (const Parameter* parameter : executor.units()[static_cast<std::size_t>(unit)].parameters) {
      const Buffer value = parameter->value();
      if (value.elems > 0) executor.compute_comm().broadcast(runtime.context().stream(), parameter->name(), value, root);
    }
    full.write_back();
  }
  for (const Parameter* parameter : executor.ignored())
    executor.compute_comm().broadcast(runtime.context().stream(), parameter->name(), parameter->value(), root);
}

}  // namespace zs
