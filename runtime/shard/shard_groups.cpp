#include "runtime/shard/shard_groups.h"

namespace zs {

ShardGroups::Over ShardGroups::axes_of(const ShardScheme& scheme) {
  const auto without = &ShardScheme::without;
  const bool is_hierarchical = !scheme.runtime.empty() && scheme.runtime != scheme.master;
  Over over{.gather = is_hierarchical ? without(scheme.master, scheme.runtime) : scheme.master,
            .gather_small = is_hierarchical ? scheme.runtime : ShardScheme::Axes{},
            .reduce = scheme.reduced,
            .finish = {},
            .whole = scheme.master};
  if (!scheme.between.empty() && scheme.between != scheme.runtime) over.gather_small = scheme.between;
  if (!scheme.has_final_step()) return over;
  over.finish = without(scheme.master, scheme.reduced);
  if (over.finish.empty()) over.finish = without(scheme.reduced, scheme.master);
  if (over.finish.empty()) over.finish = scheme.replicate;
  return over;
}

ShardGroups::ShardGroups(World& world, const ShardScheme& scheme, bool has_whole) {
  const auto group = [&](const ShardScheme::Axes& axes) { return world.group(scheme.ranks_over(axes)); };
  const Over over = axes_of(scheme);
  kept = over.gather_small;
  gather = group(over.gather);
  if (!kept.empty()) gather_small = group(kept);
  reduce = group(over.reduce);
  if (!over.finish.empty()) finish = group(over.finish);
  if (has_whole && !over.whole.empty() && over.whole != over.reduce) whole = group(over.whole);
  compute = world.communicator();
  if (scheme.slice(scheme.master).count != world.size()) norm = group(scheme.master);
}

ShardGroups::Sent ShardGroups::Sent::since(const Sent& earlier) const {
  return {gather.since(earlier.gather), gather_small.since(earlier.gather_small), reduce.since(earlier.reduce),
          finish.since(earlier.finish), whole.since(earlier.whole)};
}

ShardGroups::Sent ShardGroups::sent() const {
  const auto of = [](const std::unique_ptr<Communicator>& comm) { return comm ? comm->traffic() : CommTraffic{}; };
  return {of(gather), of(gather_small), of(reduce), of(finish), of(whole)};
}

}  // namespace zs
