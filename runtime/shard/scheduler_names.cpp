#include "runtime/shard/scheduler.h"

namespace zs {

const char* name_of(Action::Kind kind) {
  switch (kind) {
    case Action::Kind::gather: return "gather";
    case Action::Kind::gather_through: return "gather_through";
    case Action::Kind::gather_kept: return "gather_kept";
    case Action::Kind::wait_gathered: return "wait_gathered";
    case Action::Kind::keep_shard: return "keep_shard";
    case Action::Kind::drop_shard: return "drop_shard";
    case Action::Kind::free_full: return "free_full";
    case Action::Kind::set_aside: return "set_aside";
    case Action::Kind::give_back: return "give_back";
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
