#include "runtime/shard/full_parameters.h"

#include <exception>

namespace zs {

FullParameters::FullParameters(ShardedRuntime& runtime, int unit)
    : runtime_(runtime), unit_(unit), exceptions_(std::uncaught_exceptions()) {
  Scheduler& scheduler = runtime.scheduler();
  ZS_CHECK(!scheduler.is_in_micro_batch(), "unit {} is made full within a micro-batch: do so between steps", runtime.name(unit));
  ZS_CHECK(scheduler.state(unit) == UnitState::sharded && scheduler.shard_state(unit) == ShardState::none,
           "unit {} is made full while it is gathered: reshard it first, or end the step", runtime.name(unit));
  runtime.executor().set_full_precision(unit, true);
  runtime.unshard(unit).wait();
}

void FullParameters::write_back() { runtime_.executor().write_back(unit_); }

FullParameters::~FullParameters() noexcept(false) {
  if (std::uncaught_exceptions() == exceptions_) runtime_.executor().check_written(unit_);
  runtime_.reshard(unit_);
  runtime_.executor().set_full_precision(unit_, false);
}

}  // namespace zs
