// Hooks that are called when a unit's gradient is on its way.
#include <utility>

#include "runtime/base/usage_error.h"
#include "runtime/shard/runtime/sharded_runtime.h"

namespace zs {

/// A unit is reported when the next one is about to be reduced: what a hook makes compute wait for has had that one's
/// backward to run beside.
void ShardedRuntime::run_and_report(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    const bool is_first_step = action.kind == Action::Kind::reduce;
    if (is_first_step) report_pending();
    executor_.run({action});
    const FlatParameter& unit = executor_.units()[static_cast<std::size_t>(action.unit)];
    if (action.kind == Action::Kind::finish ||
        (is_first_step && unit.placement->second == Placement::SecondStep::none)) {
      report_pending();
      reduced_ = action.unit;
    }
  }
}

void ShardedRuntime::report_pending() {
  if (reduced_) executor_.report_reduced(*std::exchange(reduced_, std::nullopt));
}

void ShardedRuntime::on_reduced(std::function<void(int unit)> hook) {
  executor_.step().check_no_micro_batch("on_reduced()");
  if (!hook) throw UsageError("on_reduced() of an empty function", "give it one");
  executor_.on_reduced(std::move(hook));
}

}  // namespace zs
