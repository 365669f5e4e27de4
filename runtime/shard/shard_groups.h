#pragma once

#include <memory>
#include <string>

#include "comm/world.h"
#include "runtime/shard/scheme.h"

namespace zs {

/// What moves nothing and waits for nobody, as in a null world: for finding out what a step takes without it.
enum class Omit : std::uint8_t { nothing, gathers, reductions, both };

/// The communicators of a scheme on one rank, one for each group and stream. Owned by an Executor; must die before the World. What a
/// scheme has no use for is null.
struct ShardGroups {
  /// `has_whole`: some parameters may be whole on every rank, but for their gradients' reduction.
  ShardGroups(World& world, const ShardScheme& scheme, bool has_whole, Omit omit);

  std::unique_ptr<Communicator> compute;       ///< all ranks, compute stream: losses, status
  std::unique_ptr<Communicator> norm;          ///< the ranks that share one set of master weights, compute stream; null: all ranks
  std::unique_ptr<Communicator> gather;        ///< unshard stream: those ranks, or only the same place in every small group
  std::unique_ptr<Communicator> gather_small;  ///< unshard stream: the ranks that share one set of kept shards
  std::unique_ptr<Communicator> reduce;        ///< reduce stream: first step of a gradient's reduction
  std::unique_ptr<Communicator> finish;        ///< finish stream: its second step
  std::unique_ptr<Communicator> whole;         ///< reduce stream: the ranks that share one set of masters, where `reduce` is over others
  /// On the reduce stream, over the ranks that share one set of master weights.
  Communicator& over_masters() { return whole ? *whole : *reduce; }
  /// The axes that each group is over; none where the scheme has no use for it.
  struct Over {
    ShardScheme::Axes gather, gather_small, reduce, finish, whole;
  };
  static Over axes_of(const ShardScheme& scheme);

  /// What this rank has sent for parameters and gradients, by group.
  struct Sent {
    CommTraffic gather, gather_small, reduce, finish, whole;
    Sent since(const Sent& earlier) const;
    /// Of both kinds.
    std::int64_t parameter_bytes() const { return gather.sent_bytes() + gather_small.sent_bytes(); }
    std::int64_t gradient_bytes() const { return reduce.sent_bytes() + finish.sent_bytes() + whole.sent_bytes(); }
  };
  Sent sent() const;

  /// What moves the data of those that gather and reduce units and have a transport of their own, on any rank: "gather shm, finish mpi".
  /// Empty where none has: their transport is chosen by where their ranks are, where `world` goes over several hosts.
  static std::string describe(const World& world, const SchemeOptions& options);

  ShardScheme::Axes kept;         ///< over which the kept shards are cut; empty: none are kept
  bool kept_within_hosts = true;  ///< all ranks that share one set of kept shards, whichever set, are on one host
};

}  // namespace zs
