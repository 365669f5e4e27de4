#pragma once

#include <cstdint>
#include <optional>

namespace zs {

/// Action that the scheduler asks of the executor. All actions are enqueued, in this order.
struct Action {
  enum class Kind : std::uint8_t {
    gather,  ///< all-gather the unit's flat parameter from the master shards into a full buffer, on the unshard stream
    /// all-gather it by way of the small group's shard, which stays at hand
    two_level_gather,
    gather_secondary,      ///< all-gather it from the shards at hand, within the small group
    wait_gathered,         ///< compute waits for that gather
    keep_secondary_shard,  ///< copy this rank's shard of the small group out of the full buffer, on compute
    drop_secondary_shard,  ///< the shard at hand goes back once the unshard stream has done what is enqueued
    free_full,             ///< the full buffer goes back once compute has done what is enqueued
    defer_free,            ///< the unit is done with its full buffer, which does not go back yet
    free_deferred,         ///< the oldest buffer that the unit has set aside goes back as of then
    begin_gradient,        ///< a full gradient buffer for the unit, on compute
    reduce,                ///< reduce-scatter it, on the reduce stream, once compute has filled it
    finish,  ///< the second step of the reduction, on the finish stream: what `reduce` summed becomes the master's
             ///< gradient
    park_gradient,     ///< the full gradient buffer goes to the host as compute leaves it, and no more is on the device
    reload_gradient,   ///< the gradient comes back, as it was, on the offload stream
    resume_gradient,   ///< compute waits for that, and goes on adding to it
    park_sum,          ///< the sum that `reduce` has made goes to the host
    reload_sum,        ///< the sum comes back; the reduce stream waits for it
    release_gradient,  ///< the full gradient buffer goes back once its reduction is done
  };
  Kind kind;
  int unit;
  bool operator==(const Action&) const = default;
};
const char* name_of(Action::Kind kind);

enum class UnitState : std::uint8_t { sharded, gathering, unsharded };
/// State of the small group's shard: at hand (`kept`) it is cheaper to gather from than the master shards.
enum class ShardState : std::uint8_t { none, kept };
enum class GradState : std::uint8_t { none, accumulating, reducing, parked, reloading };
/// State of the sum of a unit's reductions so far that waits for its second step: none, on the device, or parked.
enum class SumState : std::uint8_t { none, partial, parked };
const char* name_of(UnitState state);
const char* name_of(GradState state);

/// The transition tables: what an action makes of a state; none where it is not allowed in it. An action that is about
/// other states leaves this one as it is.
std::optional<UnitState> after(Action::Kind kind, UnitState state);
std::optional<ShardState> after(Action::Kind kind, ShardState state);
std::optional<GradState> after(Action::Kind kind, GradState state);
std::optional<SumState> after(Action::Kind kind, SumState state);

}  // namespace zs
