#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "comm/mesh.h"
#include "runtime/shard/placement/rank_grid.h"
#include "runtime/shard/schedule/scheduler.h"

namespace zs {

/// State of a unit's parameters between its forward and its backward: sharded over all ranks that they are sharded over
/// at other times (`true`), kept whole (`false`), or sharded over a smaller group of so many ranks.
class Reshard {
 public:
  template <class Bool>
  requires std::is_same_v<Bool, bool>
  constexpr Reshard(Bool whether)
      : ranks_(whether ? kAll : 1) {}  // NOLINT(google-explicit-constructor): true and false are two
  static constexpr Reshard over(std::int64_t ranks) { return Reshard(ranks, 0); }

  constexpr bool is_all() const { return ranks_ == kAll; }
  constexpr bool is_off() const { return ranks_ == 1; }
  /// The size of the smaller group; 0 where there is none.
  constexpr std::int64_t group() const { return ranks_ > 1 ? ranks_ : 0; }
  /// "true", "false" or the number of ranks.
  std::string str() const;
  bool operator==(const Reshard&) const = default;

 private:
  static constexpr std::int64_t kAll = 0;
  constexpr Reshard(std::int64_t ranks, int) : ranks_(ranks) {}
  std::int64_t ranks_;
};

/// Strategy that says which parts of a unit are cut over the ranks, by its established name (docs/sharding.md).
enum class Strategy : std::uint8_t {
  ddp,            ///< everything whole on every rank; gradients are all-reduced
  zero1,          ///< optimizer state sharded
  zero2,          ///< and gradients between micro-batches
  zero3,          ///< and parameters
  shard_grad_op,  ///< parameters sharded between micro-batches, whole between forward and backward
  hsdp,           ///< zero3 within groups of `group_size` ranks, the groups replicas of each other
  nested,         ///< optimizer state over all ranks, parameters within groups of `group_size`
};
/// Names of the strategies, for messages.
inline constexpr std::string_view kStrategies = "ddp|zero1|zero2|zero3|shard_grad_op|hsdp|nested";
/// "zero3"
const char* name_of(Strategy strategy);
/// Strategy of this name; an unknown one is an Error(config).
Strategy strategy_of(std::string_view name);
/// "1, 2, 4": the sizes that groups of a job of `ranks` can have.
std::string group_sizes_of(int ranks);
/// Error(config) unless groups of `size`, which `what` names, divide a job of `ranks`.
void check_divides(std::string_view what, std::int64_t size, int ranks);

/// The axes over which the parts of a unit are cut. A list names axes from the most significant: of {"node", "group"},
/// the rank at node position r in group g owns slice r * size(group) + g. An empty list: whole on every rank.
using MeshAxes = std::vector<std::string>;

/// A grid of one's own, instead of the one that a strategy makes, and what is cut over which of its axes.
struct MeshLayout {
  std::vector<MeshAxis> axes;            ///< the last varies fastest; their product is the number of ranks
  std::vector<int> order = {};           ///< the ranks as they lie on the grid; empty: 0, 1, 2 ...
  MeshAxes runtime = {};                 ///< parameters between uses: none, the master's, or its first ones
  std::optional<MeshAxes> between = {};  ///< and between forward and backward; none: as between uses
  MeshAxes master = {};                  ///< f32 weights, reduced gradients, optimizer state
  MeshAxes replicate = {};               ///< the other axes: ranks along them hold the same master shard
  bool operator==(const MeshLayout&) const = default;
};

/// Options of a scheme: who holds what, and when gradients are reduced.
struct SchemeOptions {
  Strategy strategy = Strategy::zero3;
  int group_size = 0;  ///< ranks of a small group: hsdp and nested only
  Reshard reshard_after_forward = true;
  /// Reduces in every micro-batch, else gradients stay whole until the last; zero1 and zero2 are one and the other.
  bool reduce_every_micro_batch = true;
  bool all_reduce_every_micro_batch = false;
  bool deterministic = false;  ///< gradients are folded over all ranks in the order of ranks, every micro-batch
  /// Mesh that takes the place of strategy and group_size; `reshard_after_forward` is true or false then.
  std::optional<MeshLayout> mesh = {};
  bool operator==(const SchemeOptions&) const = default;
};

/// `options` with the ranks of a host as group_size where the strategy has groups and none is given. Error(config)
/// where hosts have not equally many ranks, or not one after the other.
SchemeOptions with_host_groups(SchemeOptions options, const std::vector<int>& host_of_rank);
/// Options with those of a host's ranks that read different data on the grid.
SchemeOptions with_host_groups(const SchemeOptions& options, const std::vector<int>& host_of_rank,
                               const RankGrid& grid);

/// Scheme that says over which axes of a mesh the parts of a unit are sharded, for one rank. All known schemes of data
/// parallelism differ in these lists only (docs/sharding.md). A value.
class ShardScheme {
 public:
  using Axes = MeshAxes;

  /// Scheme over the ranks of a sub-grid. Error(config) where sizes do not divide, or options do not go together.
  ShardScheme(const SchemeOptions& options, const SubGrid& grid);
  /// Scheme over all of so many ranks.
  ShardScheme(const SchemeOptions& options, int rank, int ranks)
      : ShardScheme(options, RankGrid({}, rank, ranks).sub_grid()) {}

  Axes runtime;      ///< parameters between uses
  Axes between;      ///< parameters between a unit's forward and its backward
  Axes accumulator;  ///< gradients between micro-batches
  Axes master;       ///< f32 weights, reduced gradients, optimizer state
  Axes replicate;    ///< ranks along these hold the same master shard
  Axes partition;    ///< axes of the job's grid along which ranks hold different parts of parameters
  /// Axes of the job's grid beside the scheme's: ranks along them exchange nothing of the unit. Those of `partition`,
  /// and others, whose ranks hold the same and compute the same.
  Axes beside;
  /// Axes over which a micro-batch's gradient is reduce-scattered; the rest of the reduction comes at the end.
  Axes reduced;

  /// One of `count` equal parts.
  struct Slice {
    int index = 0, count = 1;
    bool operator==(const Slice&) const = default;
  };
  /// This rank's slice of what is sharded over `axes`.
  Slice slice(const Axes& axes) const;
  /// The ranks that share one whole sharded over `axes`, in the order of their slices; this one included.
  std::vector<int> ranks_over(const Axes& axes) const { return mesh_.ranks_over(axes); }
  /// Axes of `all` that `some` has not.
  static Axes without(const Axes& all, const Axes& some);
  /// Divisor that the padded flat parameter must be a multiple of: the slices of every role.
  int finest() const;
  /// This scheme, seen from another rank.
  ShardScheme at(int rank) const;

  const SchemeOptions& options() const { return options_; }
  /// True if parameters are sharded between uses, at any number of ranks.
  bool shards_parameters() const;
  const Mesh& mesh() const { return mesh_; }
  /// Shares of data in the job, over which a gradient's sum is.
  int data_shares() const { return shares_; }
  /// Axes over which a unit's masters and their partitions are cut: the ranks over them hold each value once.
  Axes holders() const;

  UnitSchedule unit_schedule() const;
  /// True if the gradient that is reduced over `reduced` needs a second step to become the master shard's.
  bool has_final_step() const { return reduced != master || !replicate.empty(); }
  /// "zero3": the strategy's name, or "mesh".
  std::string_view name() const;
  /// "zero3: parameters, gradients and optimizer state over 8 ranks"
  std::string describe() const;

 private:
  ShardScheme(SchemeOptions options, const MeshLayout& layout, const SubGrid& grid);
  void set_roles(const MeshLayout& layout);
  void check_roles() const;

  SchemeOptions options_;
  Mesh data_mesh_;  // the scheme's own axes, over the ranks of the sub-grid
  Mesh mesh_;       // all ranks: the axes beside, then those of data_mesh_
  int shares_;
};

}  // namespace zs
