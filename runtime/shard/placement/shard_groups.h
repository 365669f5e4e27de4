#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/world.h"
#include "runtime/shard/placement/scheme.h"

namespace zs {

/// Operations to omit: they move nothing and wait for nobody, as in a null world. For finding out what a step takes
/// without them.
enum class Omit : std::uint8_t { nothing, gathers, reductions, both };

class GroupTable;

/// Purpose of a group of ranks.
enum class GroupRole : std::uint8_t { gather, gather_small, reduce, finish, whole, norm };
/// Replacement for a group that the world has made, or that group itself. Its operations are the group's own; it must
/// die before the world, and may keep `usual` for that.
using ReplaceGroup = std::function<std::shared_ptr<Communicator>(GroupRole role, std::shared_ptr<Communicator> usual)>;

/// Options that the groups are made with.
struct GroupOptions {
  Omit omit = Omit::nothing;
  ReplaceGroup replace = {};        ///< empty: the world's own
  std::vector<GridAxis> grid = {};  ///< axes of the job's RankGrid; none: each rank reads other data
};

/// The communicators of a scheme on one rank, one for each group and stream. Those of schemes that cut alike are the
/// same; must die before the World. What a scheme has no use for is null.
struct ShardGroups {
  /// Collective. `has_whole`: some parameters may be whole on every rank, but for their gradients' reduction.
  ShardGroups(GroupTable& table, const ShardScheme& scheme, bool has_whole);

  /// Unshard stream: the ranks of `norm`, or only the same place in every small group.
  std::shared_ptr<Communicator> gather;
  std::shared_ptr<Communicator> gather_small;  ///< unshard stream: the ranks that share one set of kept shards
  std::shared_ptr<Communicator> reduce;        ///< reduce stream: first step of a gradient's reduction
  std::shared_ptr<Communicator> finish;        ///< finish stream: its second step
  /// Reduce stream: the ranks that share one set of masters, where `reduce` is over others.
  std::shared_ptr<Communicator> whole;
  /// Compute stream: the ranks that share one set of master weights, of all partitions; null: all ranks.
  std::shared_ptr<Communicator> norm;
  /// Communicator on the reduce stream over the ranks that share one set of master weights.
  Communicator& over_masters() const { return whole ? *whole : *reduce; }
  /// The axes that each group is over; none where the scheme has no use for it.
  struct Over {
    ShardScheme::Axes gather, gather_small, reduce, finish, whole;
  };
  static Over axes_of(const ShardScheme& scheme);

  /// Traffic that this rank has sent for parameters and gradients, by group; and between parts along the grid's axes.
  struct Sent {
    CommTraffic gather, gather_small, reduce, finish, whole, along = {};
    Sent since(const Sent& earlier) const;
    /// Bytes of both kinds of gathers.
    std::int64_t parameter_bytes() const { return gather.sent_bytes() + gather_small.sent_bytes(); }
    std::int64_t gradient_bytes() const { return reduce.sent_bytes() + finish.sent_bytes() + whole.sent_bytes(); }
  };

  /// Transports of the groups that gather and reduce units and have one of their own, on any rank: "gather shm, finish
  /// mpi". Empty where none has: their transport is chosen by where their ranks are, where `world` goes over several
  /// hosts.
  static std::string describe(const World& world, const SchemeOptions& options);

  ShardScheme::Axes kept;         ///< over which the kept shards are cut; empty: none are kept
  bool kept_within_hosts = true;  ///< all ranks that share one set of kept shards, whichever set, are on one host
};

/// The communicators that the units of one rank have, each made when the first unit needs it. Owned by an Executor, and
/// outlived by the World.
class GroupTable {
 public:
  using Role = GroupRole;

  /// Collective where the options have a grid.
  GroupTable(World& world, GroupOptions options);
  ~GroupTable();
  GroupTable(const GroupTable&) = delete;
  GroupTable& operator=(const GroupTable&) = delete;

  /// Collective where there is none yet, which all ranks see alike: over the ranks that share what is cut over `axes`.
  std::shared_ptr<Communicator> group(Role role, const ShardScheme& scheme, const ShardScheme::Axes& axes);
  /// All ranks, compute stream: status. Collective the first time.
  Communicator& compute();
  /// The ranks that share a loss, compute stream: `compute()` where those are all. Collective the first time.
  Communicator& losses();
  const RankGrid& grid() const { return grid_; }
  /// The ranks along an axis of the grid, compute stream: they hold the parts of what is cut over it. Error(config)
  /// where GroupOptions::grid has no such axis.
  Communicator& along(const std::string& axis) const;
  World& world() const { return world_; }
  /// Traffic that this rank has sent so far for parameters and gradients, and between parts.
  ShardGroups::Sent sent() const;

 private:
  CommTraffic sent(Role role) const;

  World& world_;
  std::unique_ptr<World> nobody_;
  GroupOptions options_;
  RankGrid grid_;
  std::unique_ptr<Communicator> compute_, losses_;
  std::map<std::string, std::unique_ptr<Communicator>> along_;
  std::map<std::pair<Role, std::vector<int>>, std::shared_ptr<Communicator>> groups_;
};

}  // namespace zs
