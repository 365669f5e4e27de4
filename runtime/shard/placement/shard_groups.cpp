#include "runtime/shard/placement/shard_groups.h"

#include <fmt/format.h>

#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/host/host_map.h"
#include "runtime/base/usage_error.h"

namespace zs {
namespace {

/// Hosts of the ranks of one rank's group over `axes`.
HostMap places_of(const ShardScheme& scheme, const ShardScheme::Axes& axes, const std::vector<int>& hosts) {
  std::vector<int> places;
  for (const int rank : scheme.ranks_over(axes)) places.push_back(hosts[static_cast<std::size_t>(rank)]);
  return HostMap(places);
}

bool is_within_hosts(const World& world, const ShardScheme& scheme, const ShardScheme::Axes& axes) {
  const std::vector<int> hosts = world.hosts();
  for (int rank = 0; rank < world.size(); ++rank) {
    if (!places_of(scheme.at(rank), axes, hosts).is_one_host()) return false;
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

ShardGroups::ShardGroups(GroupTable& table, const ShardScheme& scheme, bool has_whole) {
  using Role = GroupTable::Role;
  const Over over = axes_of(scheme);
  kept = over.gather_small;
  gather = table.group(Role::gather, scheme, over.gather);
  if (!kept.empty()) {
    gather_small = table.group(Role::gather_small, scheme, kept);
    kept_within_hosts = is_within_hosts(table.world(), scheme, kept);
  }
  reduce = table.group(Role::reduce, scheme, over.reduce);
  if (!over.finish.empty()) finish = table.group(Role::finish, scheme, over.finish);
  if (has_whole && !over.whole.empty() && over.whole != over.reduce)
    whole = table.group(Role::whole, scheme, over.whole);
  const int ranks = table.compute().size();
  if (scheme.slice(scheme.holders()).count != ranks) norm = table.group(Role::norm, scheme, scheme.holders());
}

GroupTable::GroupTable(World& world, GroupOptions options)
    : world_(world),
      nobody_(make_null_world(world)),
      options_(std::move(options)),
      grid_(options_.grid, world.rank(), world.size()) {
  for (const GridAxis& axis : options_.grid) along_[axis.name] = grid_.mesh().communicator(world, axis.name);
}

GroupTable::~GroupTable() = default;

std::shared_ptr<Communicator> GroupTable::group(Role role, const ShardScheme& scheme, const ShardScheme::Axes& axes) {
  std::shared_ptr<Communicator>& known = groups_[{role, scheme.mesh().cut_over(axes)}];
  if (known) return known;
  const bool is_gather = role == Role::gather || role == Role::gather_small;
  const bool is_omitted = role != Role::norm && (options_.omit == Omit::both ||
                                                 options_.omit == (is_gather ? Omit::gathers : Omit::reductions));
  std::shared_ptr<Communicator> made = (is_omitted ? *nobody_ : world_).group(scheme.ranks_over(axes));
  known = options_.replace ? options_.replace(role, made) : made;
  if (known != nullptr && known->size() == made->size() && known->rank() == made->rank()) return known;
  const std::string found = known == nullptr ? "nothing" : fmt::format("rank {} of {}", known->rank(), known->size());
  known = nullptr;
  throw UsageError(fmt::format("replace_group put {} in the place of rank {} of {}", found, made->rank(), made->size()),
                   "give a communicator of the same ranks in the same order, or the one that it was given");
}

Communicator& GroupTable::compute() {
  if (!compute_) compute_ = world_.communicator();
  return *compute_;
}

Communicator& GroupTable::losses() {
  if (grid_.is_data_alone()) return compute();
  if (!losses_) losses_ = world_.group(grid_.loss_ranks());
  return *losses_;
}

Communicator& GroupTable::along(const std::string& axis) const {
  grid_.mesh().size(axis);  // an Error where there is none
  const auto found = along_.find(axis);
  if (found == along_.end())
    throw UsageError(fmt::format("ranks along the axis {} of a job without a grid", axis), "set ShardOptions::grid");
  return *found->second;
}

CommTraffic GroupTable::sent(Role role) const {
  CommTraffic sum;
  for (const auto& [key, group] : groups_) {
    if (key.first == role) sum.add(group->traffic());
  }
  return sum;
}

ShardGroups::Sent GroupTable::sent() const {
  ShardGroups::Sent all{sent(Role::gather), sent(Role::gather_small), sent(Role::reduce), sent(Role::finish),
                        sent(Role::whole)};
  for (const auto& [axis, ranks] : along_) all.along.add(ranks->traffic());
  return all;
}

std::string ShardGroups::describe(const World& world, const SchemeOptions& options) {
  if (world.transport() != "hier") return "";
  const std::vector<int> hosts = world.hosts();
  const auto transport = [&](const ShardScheme& scheme, const ShardScheme::Axes& axes) -> std::string_view {
    const HostMap places = places_of(scheme, axes, hosts);
    return places.size() == 1 ? "" : places.transport();
  };
  std::vector<std::string> groups;
  for (const auto& [name, axes] :
       {std::pair("gather", &Over::gather), std::pair("gather within groups", &Over::gather_small),
        std::pair("reduce", &Over::reduce), std::pair("finish", &Over::finish)}) {
    std::set<std::string_view> found;
    for (int rank = 0; rank < world.size(); ++rank) {
      const ShardScheme scheme(with_host_groups(options, hosts), rank, world.size());
      found.insert(transport(scheme, axes_of(scheme).*axes));
    }
    found.erase("");
    if (!found.empty() && found != std::set<std::string_view>{"hier"})
      groups.push_back(fmt::format("{} {}", name, fmt::join(found, "/")));
  }
  return fmt::format("{}", fmt::join(groups, ", "));
}

ShardGroups::Sent ShardGroups::Sent::since(const Sent& earlier) const {
  return {gather.since(earlier.gather), gather_small.since(earlier.gather_small),
          reduce.since(earlier.reduce), finish.since(earlier.finish),
          whole.since(earlier.whole),   along.since(earlier.along)};
}

}  // namespace zs
