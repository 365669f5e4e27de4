#include "runtime/base/usage_error.h"
#include "runtime/shard/runtime/sharded_runtime.h"

namespace zs {

Scheduler::AfterForward ShardedRuntime::after_forward_of(const Reshard& reshard) {
  using AfterForward = Scheduler::AfterForward;
  return reshard.is_off()       ? AfterForward::stay
         : reshard.group() != 0 ? AfterForward::keep_secondary_shard
                                : AfterForward::free;
}

Scheduler& ShardedRuntime::switches(const char* call) {
  executor_.step().check_no_micro_batch(call);
  return scheduler();
}

void ShardedRuntime::set_requires_gradient_sync(int unit, bool requires_sync) {
  switches("set_requires_gradient_sync()").set_syncs(unit, requires_sync);
}

void ShardedRuntime::set_requires_all_reduce(int unit, bool requires_all_reduce) {
  switches("set_requires_all_reduce()").set_all_reduces(unit, requires_all_reduce);
}

void ShardedRuntime::set_reshard_after_forward(int unit, bool reshards) {
  Scheduler& scheduler = switches("set_reshard_after_forward()");
  const ShardScheme& scheme = executor_.units().at(static_cast<std::size_t>(unit)).placement->scheme;
  if (!scheme.shards_parameters()) {
    throw UsageError(
        fmt::format("set_reshard_after_forward() of unit {}, whose strategy \"{}\" does not shard parameters",
                    name(unit), scheme.name()),
        "leave it out, or use zero3, shard_grad_op, hsdp or nested");
  }
  scheduler.set_after_forward(unit, after_forward_of(!reshards ? Reshard(false)
                                                     : scheme.options().reshard_after_forward.is_off()
                                                         ? Reshard(true)
                                                         : scheme.options().reshard_after_forward));
}

void ShardedRuntime::set_unshard_in_backward(int unit, bool unshards) {
  switches("set_unshard_in_backward()").set_unshards_in_backward(unit, unshards);
}

void ShardedRuntime::set_reshard_after_backward(int unit, bool reshards) {
  switches("set_reshard_after_backward()").set_reshard_after_backward(unit, reshards);
}

}  // namespace zs
