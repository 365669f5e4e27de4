#include "runtime/shard/shard_groups.h"

namespace zs {

ShardGroups::ShardGroups(World& world, const ShardScheme& scheme) {
  using Axes = ShardScheme::Axes;
  const auto over = [&](const Axes& axes) { return world.group(scheme.ranks_over(axes)); };
  const bool is_hierarchical = !scheme.runtime.empty() && scheme.runtime != scheme.master;
  gather = over(is_hierarchical ? ShardScheme::without(scheme.master, scheme.runtime) : scheme.master);
  if (is_hierarchical) kept = scheme.runtime;
  if (!scheme.between.empty() && scheme.between != scheme.runtime) kept = scheme.between;
  if (!kept.empty()) gather_small = over(kept);

  reduce = over(scheme.reduced);
  compute = world.communicator();
  if (scheme.slice(scheme.master).count != world.size()) norm = over(scheme.master);
  if (!scheme.has_final_step()) return;
  const Axes rest = ShardScheme::without(scheme.master, scheme.reduced), beyond = ShardScheme::without(scheme.reduced, scheme.master);
  finish = over(!rest.empty() ? rest : !beyond.empty() ? beyond : scheme.replicate);
}

}  // namespace zs
