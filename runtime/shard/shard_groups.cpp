#include "runtime/shard/shard_groups.h"

#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/hier/host_map.h"

namespace zs {
namespace {

/// Where the ranks of one rank's group over `axes` are.
HostMap places_of(const ShardScheme& scheme, const ShardScheme::Axes& axes, const std::vector<int>& hosts) {
  std::vector<int> places;
  for (const int rank : scheme.ranks_over(axes)) places.push_back(hosts[static_cast<std::size_t>(rank)]);
  return HostMap(places);
}

bool is_within_hosts(const World& world, const SchemeOptions& options, const ShardScheme::Axes& axes) {
  const std::vector<int> hosts = world.hosts();
  for (int rank = 0; rank < world.size(); ++rank) {
    if (!places_of(ShardScheme(options, rank, world.size()), axes, hosts).is_one_host()) return false;
  }
  return true;
}

}  // namespace

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

ShardGroups::ShardGroups(World& world, const ShardScheme& scheme, bool has_whole, Omit omit) {
  const auto nobody = make_null_world(world);
  World& gathering = omit == Omit::gathers || omit == Omit::both ? *nobody : world;
  World& reducing = omit == Omit::reductions || omit == Omit::both ? *nobody : world;
  const auto group = [&](World& of, const ShardScheme::Axes& axes) { return of.group(scheme.ranks_over(axes)); };
  const Over over = axes_of(scheme);
  kept = over.gather_small;
  gather = group(gathering, over.gather);
  if (!kept.empty()) {
    gather_small = group(gathering, kept);
    kept_within_hosts = is_within_hosts(world, scheme.options(), kept);
  }
  reduce = group(reducing, over.reduce);
  if (!over.finish.empty()) finish = group(reducing, over.finish);
  if (has_whole && !over.whole.empty() && over.whole != over.reduce) whole = group(reducing, over.whole);
  compute = world.communicator();
  if (scheme.slice(scheme.master).count != world.size()) norm = group(world, scheme.master);
}

std::string ShardGroups::describe(const World& world, const SchemeOptions& options) {
  if (world.transport() != "hier") return "";
  const std::vector<int> hosts = world.hosts();
  const auto transport = [&](const ShardScheme& scheme, const ShardScheme::Axes& axes) -> std::string_view {
    const HostMap places = places_of(scheme, axes, hosts);
    return places.size() == 1 ? "" : places.transport();
  };
  std::vector<std::string> groups;
  for (const auto& [name, axes] : {std::pair("gather", &Over::gather), std::pair("gather within groups", &Over::gather_small),
                                   std::pair("reduce", &Over::reduce), std::pair("finish", &Over::finish)}) {
    std::set<std::string_view> found;
    for (int rank = 0; rank < world.size(); ++rank) {
      const ShardScheme scheme(options, rank, world.size());
      found.insert(transport(scheme, axes_of(scheme).*axes));
    }
    found.erase("");
    if (!found.empty() && found != std::set<std::string_view>{"hier"}) groups.push_back(fmt::format("{} {}", name, fmt::join(found, "/")));
  }
  return fmt::format("{}", fmt::join(groups, ", "));
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
