#include "comm/mesh.h"

#include <algorithm>
#include <cstdint>

namespace zs {

Mesh::Mesh(std::vector<MeshAxis> axes, int rank, int world_size) : axes_(std::move(axes)), rank_(rank) {
  ZS_CHECK(rank >= 0 && rank < world_size, "rank {} of {}", rank, world_size);
  std::int64_t ranks = 1;
  std::string shown;
  for (const MeshAxis& axis : axes_) {
    if (axis.size < 1) throw Error(ExitCode::config, fmt::format("mesh axis {} has size {}", axis.name, axis.size));
    if (&axis != &axes_[index_of(axis.name)]) throw Error(ExitCode::config, fmt::format("two mesh axes are called {}", axis.name));
    ranks = std::min<std::int64_t>(ranks * axis.size, std::int64_t{world_size} + 1);  // enough to tell, and no overflow
    shown += fmt::format("{}{}={}", shown.empty() ? "" : ", ", axis.name, axis.size);
  }
  if (ranks != world_size) {
    throw Error(ExitCode::config, fmt::format("the mesh ({}) is not made of the job's {} ranks", shown, world_size), {},
                "choose axis sizes whose product is the number of ranks");
  }
  strides_.resize(axes_.size());
  coordinates_.resize(axes_.size());
  int stride = 1;
  for (std::size_t i = axes_.size(); i-- > 0;) {
    strides_[i] = stride;
    coordinates_[i] = rank / stride % axes_[i].size;
    stride *= axes_[i].size;
  }
}

std::vector<int> Mesh::ranks_along(std::string_view axis) const {
  const std::size_t i = index_of(axis);
  std::vector<int> ranks;
  for (int c = 0; c < axes_[i].size; ++c) ranks.push_back(rank_ + (c - coordinates_[i]) * strides_[i]);
  return ranks;
}

std::size_t Mesh::index_of(std::string_view axis) const {
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == axis) return i;
  }
  throw Error(ExitCode::config, fmt::format("the mesh has no axis {}", axis));
}

}  // namespace zs
