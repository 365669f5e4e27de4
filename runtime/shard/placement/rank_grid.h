#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/mesh.h"

namespace zs {

/// Part of the data that a rank reads: one of `count` equal parts, which are dealt out in turns.
struct DataShare {
  DataShare(int share_index, int shares) : index(share_index), count(shares) {}
  /// Share of a rank of a world without a grid of its own, each of whose ranks reads other data.
  DataShare(const World& world)  // NOLINT(google-explicit-constructor): a world says it as well as two numbers
      : DataShare(world.rank(), world.size()) {}

  int index, count;

  /// Number, among those of all shares, of item `i` of this one.
  std::int64_t item(std::int64_t i) const { return i * count + index; }
  bool operator==(const DataShare&) const = default;
};

/// Axis of the job's grid, and what the ranks along it have in common.
struct GridAxis {
  std::string name;
  int size = 1;
  /// True if ranks along it read different data, and share a loss; else they read the same data and compute one loss.
  bool reads_data = true;
  bool operator==(const GridAxis&) const = default;
};

/// Part of a grid that a scheme shards a unit over, as its rank sees it: the ranks that exchange parameters and
/// gradients, and the axes beside them, along which nothing of the unit is exchanged.
struct SubGrid {
  std::vector<MeshAxis> beside;             ///< axes along which ranks hold other partitions, or the same as this one
  std::vector<int> order;                   ///< all ranks of the job: group after group, each in the order of its ranks
  int rank = 0, ranks = 1;                  ///< this rank in the job, and the job's ranks
  int index = 0, size = 1;                  ///< this rank in its group, and the group's ranks
  std::vector<std::string> partition = {};  ///< axes of `beside` along which ranks hold different partitions
  int shares = 1;                           ///< shares of data in the job, whose losses have one mean
};

/// Grid of a job's ranks, with named axes, made once at start. It says which ranks read different data and share a
/// loss, and gives each unit the sub-grid that holds its shards and replicas; along the other axes ranks hold different
/// partitions of the unit, or the same. A value that knows one rank's place.
class RankGrid {
 public:
  /// `axes`: the last varies fastest; none: one axis, "data", of all ranks. Error(config) where two have one name, or
  /// their sizes do not make up the ranks.
  RankGrid(const std::vector<GridAxis>& axes, int rank, int ranks);

  const Mesh& mesh() const { return mesh_; }
  /// True if each rank reads other data.
  bool is_data_alone() const { return data_share().count == mesh_.size(); }
  /// True if ranks along the axis read different data. Error(config) where the grid has none of that name.
  bool reads_data(const std::string& axis) const;
  /// Axes along which ranks read the same data.
  std::vector<std::string> axes_of_same_data() const;
  /// This rank's part of the data.
  DataShare data_share() const;
  /// The ranks that share a loss with this one, each with another part of the data, in the order of parts.
  std::vector<int> loss_ranks() const { return mesh_.ranks_over(data_axes_); }
  /// Sub-grid for a unit that is partitioned over some axes: over the others that read different data its scheme holds
  /// shards and replicas. Error(config) where the grid has not such an axis.
  SubGrid sub_grid(const std::vector<std::string>& partition = {}) const;

 private:
  Mesh mesh_;
  std::vector<std::string> data_axes_;
};

}  // namespace zs
