#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/world.h"

namespace zs {

/// A direction of a mesh, and how many ranks there are along it.
struct MeshAxis {
  std::string name;
  int size = 1;
  bool operator==(const MeshAxis&) const = default;
};

/// The ranks of a world on a grid with named axes, row-major: the last axis varies fastest. A value; knows one rank's
/// place. Makes communicators but owns none.
class Mesh {
 public:
  /// The product of the sizes must be the world's size; names differ. `order`: the ranks in the order of the grid, each
  /// once; empty: 0, 1, 2 ... Otherwise Error(config).
  Mesh(std::vector<MeshAxis> axes, int rank, int world_size, std::vector<int> order = {});

  std::span<const MeshAxis> axes() const { return axes_; }
  int size(std::string_view axis) const { return axes_[index_of(axis)].size; }
  int size() const;
  bool has(std::string_view axis) const;
  int rank() const { return rank_; }
  /// True if the ranks lie on the grid in their own order.
  bool is_in_rank_order() const { return order_.empty(); }
  /// This mesh, seen from another rank.
  Mesh at(int rank) const { return {axes_, rank, size(), order_}; }
  /// This rank's place along the axis.
  int coordinate(std::string_view axis) const { return coordinates_[index_of(axis)]; }
  /// The world ranks that differ from this one along `axis` only, in order of their coordinate; this one included.
  std::vector<int> ranks_along(std::string_view axis) const { return ranks_over({{std::string(axis)}}); }
  /// World ranks that differ from this one along these axes only, this one included; the last axis varies fastest.
  std::vector<int> ranks_over(const std::vector<std::string>& axes) const;
  /// Key that distinguishes the groups over these axes, of all ranks, from groups over others, also those of another
  /// mesh: equal numbers, equal groups.
  std::vector<int> cut_over(const std::vector<std::string>& axes) const;
  /// Collective over the whole world, blocks the host: a communicator over `ranks_along(axis)`, for one stream.
  std::unique_ptr<Communicator> communicator(World& world, std::string_view axis) const {
    return world.group(ranks_along(axis));
  }

 private:
  std::size_t index_of(std::string_view axis) const;

  int rank_at(int place) const { return order_.empty() ? place : order_[static_cast<std::size_t>(place)]; }

  std::vector<MeshAxis> axes_;
  std::vector<int> order_;  // empty: as the ranks are numbered
  std::vector<int> strides_, coordinates_;
  int rank_, place_;
};

}  // namespace zs
