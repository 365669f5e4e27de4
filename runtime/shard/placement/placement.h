#pragma once

#include <memory>
#include <optional>

#include "runtime/shard/placement/division.h"
#include "runtime/shard/placement/partition.h"
#include "runtime/shard/placement/residence.h"
#include "runtime/shard/placement/scheme.h"
#include "runtime/shard/placement/shard_groups.h"

namespace zs {

/// Options that a unit's placement is made from.
struct PlacementOptions {
  SchemeOptions scheme = {};
  Division division = {};
  Residence residence = {};
  Partition partition = {};
  bool operator==(const PlacementOptions&) const = default;
};

/// Place of a unit's parts on one rank: how they are cut, with whom they are exchanged, and what a sum of gradients is
/// divided by. Units of one model may have different ones; those that are placed alike share one. Made by an Executor;
/// does not change.
struct Placement {
  /// Collective: makes the groups that `table` has not yet. `has_whole`: some parameters may be whole on every rank.
  Placement(const PlacementOptions& from, const ShardScheme& cut, GroupTable& table, bool has_whole);

  PlacementOptions options;
  ShardScheme scheme;
  ShardGroups groups;
  Division::Factors division;
  ShardScheme::Slice kept;  ///< this rank's of what the small group keeps

  /// Step that makes the master's gradient of the sum that the first step of a reduction leaves.
  enum class SecondStep : std::uint8_t { none, reduce_scatter, all_reduce, all_gather };
  SecondStep second = SecondStep::none;
  bool is_all_reduced_each = false;  ///< the replicas' gradients, every micro-batch
  bool is_alone = false;             ///< nobody to reduce with: where gradients are f32 the full one is the master's
  bool has_own_sum = false;          ///< the first step does not sum into the master's gradient itself

  /// True on the first of the ranks along which masters are replicas: over all ranks where it holds, each element is in
  /// one of the segments once.
  bool is_first_replica() const {
    return scheme.slice(scheme.replicate).index == 0 &&
           scheme.slice(ShardScheme::without(scheme.beside, scheme.partition)).index == 0;
  }
  /// True if ranks own different parts of the unit's parameters.
  bool is_partitioned() const { return scheme.slice(scheme.partition).count > 1; }
  /// True if this rank counts the parameters of the unit that its partition does not cut: on one of the ranks along it.
  bool counts_uncut() const { return scheme.slice(scheme.partition).index == 0; }
};

}  // namespace zs
