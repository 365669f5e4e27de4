#include "runtime/shard/scheduler.h"

namespace zs {

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
  }
  return "?";
}

}  // namespace zs
