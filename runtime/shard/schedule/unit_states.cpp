#include "runtime/shard/schedule/unit_states.h"

namespace zs {
namespace {

/// The transition tables: what each action needs to find, and what it leaves. An action that is about the other
/// machines has no row and changes nothing.
template <class State>
struct Move {
  Action::Kind kind;
  State from, to;
};
constexpr Move<UnitState> kUnitMoves[] = {
    {Action::Kind::gather, UnitState::sharded, UnitState::gathering},
    {Action::Kind::two_level_gather, UnitState::sharded, UnitState::gathering},
    {Action::Kind::gather_secondary, UnitState::sharded, UnitState::gathering},
    {Action::Kind::wait_gathered, UnitState::gathering, UnitState::unsharded},
    {Action::Kind::keep_secondary_shard, UnitState::unsharded, UnitState::unsharded},
    {Action::Kind::free_full, UnitState::unsharded, UnitState::sharded},
    {Action::Kind::defer_free, UnitState::unsharded, UnitState::sharded},
    {Action::Kind::free_full, UnitState::gathering, UnitState::sharded},  // a prefetch that nobody used
};
constexpr Move<ShardState> kShardMoves[] = {
    {Action::Kind::gather, ShardState::none, ShardState::none},
    {Action::Kind::two_level_gather, ShardState::none, ShardState::kept},
    {Action::Kind::gather_secondary, ShardState::kept, ShardState::kept},
    {Action::Kind::keep_secondary_shard, ShardState::none, ShardState::kept},
    {Action::Kind::drop_secondary_shard, ShardState::kept, ShardState::none},
};
constexpr Move<GradState> kGradMoves[] = {
    {Action::Kind::begin_gradient, GradState::none, GradState::accumulating},
    {Action::Kind::reduce, GradState::accumulating, GradState::reducing},
    {Action::Kind::release_gradient, GradState::reducing, GradState::none},
    {Action::Kind::release_gradient, GradState::accumulating, GradState::none},  // abandoned, as those below
    {Action::Kind::release_gradient, GradState::parked, GradState::none},
    {Action::Kind::release_gradient, GradState::reloading, GradState::none},
    {Action::Kind::park_gradient, GradState::accumulating, GradState::parked},
    {Action::Kind::park_gradient, GradState::reloading, GradState::parked},  // nobody has added to it
    {Action::Kind::reload_gradient, GradState::parked, GradState::reloading},
    {Action::Kind::resume_gradient, GradState::reloading, GradState::accumulating},
};
constexpr Move<SumState> kSumMoves[] = {
    {Action::Kind::reduce, SumState::none, SumState::partial},
    {Action::Kind::reduce, SumState::partial, SumState::partial},
    {Action::Kind::finish, SumState::partial, SumState::none},
    {Action::Kind::park_sum, SumState::partial, SumState::parked},
    {Action::Kind::reload_sum, SumState::parked, SumState::partial},
};

template <class Moves, class State>
std::optional<State> next_of(const Moves& moves, Action::Kind kind, State state) {
  bool concerned = false;
  for (const auto& move : moves) {
    if (move.kind != kind) continue;
    concerned = true;
    if (move.from == state) return move.to;
  }
  return concerned ? std::nullopt : std::optional(state);
}

}  // namespace

std::optional<UnitState> after(Action::Kind kind, UnitState state) { return next_of(kUnitMoves, kind, state); }
std::optional<ShardState> after(Action::Kind kind, ShardState state) { return next_of(kShardMoves, kind, state); }
std::optional<GradState> after(Action::Kind kind, GradState state) { return next_of(kGradMoves, kind, state); }
std::optional<SumState> after(Action::Kind kind, SumState state) { return next_of(kSumMoves, kind, state); }

const char* name_of(Action::Kind kind) {
  switch (kind) {
    case Action::Kind::gather: return "gather";
    case Action::Kind::two_level_gather: return "two_level_gather";
    case Action::Kind::gather_secondary: return "gather_secondary";
    case Action::Kind::wait_gathered: return "wait_gathered";
    case Action::Kind::keep_secondary_shard: return "keep_secondary_shard";
    case Action::Kind::drop_secondary_shard: return "drop_secondary_shard";
    case Action::Kind::free_full: return "free_full";
    case Action::Kind::defer_free: return "defer_free";
    case Action::Kind::free_deferred: return "free_deferred";
    case Action::Kind::begin_gradient: return "begin_gradient";
    case Action::Kind::reduce: return "reduce";
    case Action::Kind::finish: return "finish";
    case Action::Kind::park_gradient: return "park_gradient";
    case Action::Kind::reload_gradient: return "reload_gradient";
    case Action::Kind::resume_gradient: return "resume_gradient";
    case Action::Kind::park_sum: return "park_sum";
    case Action::Kind::reload_sum: return "reload_sum";
    case Action::Kind::release_gradient: return "release_gradient";
  }
  return "?";
}

const char* name_of(UnitState state) {
  switch (state) {
    case UnitState::sharded: return "sharded";
    case UnitState::gathering: return "gathering";
    case UnitState::unsharded: return "unsharded";
  }
  return "?";
}

const char* name_of(GradState state) {
  switch (state) {
    case GradState::none: return "no gradient";
    case GradState::accumulating: return "accumulating";
    case GradState::reducing: return "reducing";
    case GradState::parked: return "gradients on the host";
    case GradState::reloading: return "gradients on their way from the host";
  }
  return "?";
}

}  // namespace zs
