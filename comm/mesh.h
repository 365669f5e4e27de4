#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/world.h"

namespace zs {

struct MeshAxis {
  std::string name;
  int size = 1;
};

/// The ranks of a world on a grid with named axes, row-major: the last axis varies fastest. A value; knows one rank's place. Makes
/// communicators but owns none.
class Mesh {
 public:
  /// The product of the sizes must be the world's size; names differ. Otherwise Error(config).
  Mesh(std::vector<MeshAxis> axes, int rank, int world_size);

  std::span<const MeshAxis> axes() const { return axes_; }
  int size(std::string_view axis) const { return axes_[index_of(axis)].size; }
  /// This rank's place along the axis.
  int coordinate(std::string_view axis) const { return coordinates_[index_of(axis)]; }
  /// The world ranks that differ from this one along `axis` only, in order of their coordinate; this one included.
  std::vector<int> ranks_along(std::string_view axis) const;
  /// Collective over the whole world, blocks the host: a communicator over `ranks_along(axis)`, for one stream.
  std::unique_ptr<Communicator> communicator(World& world, std::string_view axis) const { return world.group(ranks_along(axis)); }

 private:
  std::size_t index_of(std::string_view axis) const;

  std::vector<MeshAxis> axes_;
  std::vector<int> strides_, coordinates_;
  int rank_;
};

}  // namespace zs
