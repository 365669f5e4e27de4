#include "comm/mesh.h"

#include <algorithm>
#include <cstdint>

namespace zs {
namespace {

/// The place of `rank` in `order`, which must have each of so many ranks once.
int place_in(const std::vector<int>& order, int rank, int ranks) {
  std::vector<bool> is_there(static_cast<std::size_t>(ranks));
  for (const int other : order) {
    if (other < 0 || other >= ranks || is_there[static_cast<std::size_t>(other)]) {
      throw Error(ExitCode::config, fmt::format("the mesh's order of ranks names rank {}", other), {},
                  fmt::format("name each of 0 to {} once", ranks - 1));
    }
    is_there[static_cast<std::size_t>(other)] = true;
  }
  if (std::ssize(order) != ranks) {
    throw Error(ExitCode::config, fmt::format("the mesh's order of ranks has {} of the job's {}", order.size(), ranks),
                {}, "name each once, or leave the order out");
  }
  return static_cast<int>(std::find(order.begin(), order.end(), rank) - order.begin());
}

}  // namespace

Mesh::Mesh(std::vector<MeshAxis> axes, int rank, int world_size, std::vector<int> order)
    : axes_(std::move(axes)), order_(std::move(order)), rank_(rank), place_(rank) {
  ZS_CHECK(rank >= 0 && rank < world_size, "rank {} of {}", rank, world_size);
  std::int64_t ranks = 1;
  std::string shown;
  for (const MeshAxis& axis : axes_) {
    if (axis.size < 1) throw Error(ExitCode::config, fmt::format("mesh axis {} has size {}", axis.name, axis.size));
    if (&axis != &axes_[index_of(axis.name)])
      throw Error(ExitCode::config, fmt::format("two mesh axes are called {}", axis.name));
    ranks = std::min<std::int64_t>(ranks * axis.size, std::int64_t{world_size} + 1);  // enough to tell, and no overflow
    shown += fmt::format("{}{}={}", shown.empty() ? "" : ", ", axis.name, axis.size);
  }
  if (ranks != world_size) {
    throw Error(ExitCode::config, fmt::format("the mesh ({}) is not made of the job's {} ranks", shown, world_size), {},
                "choose axis sizes whose product is the number of ranks");
  }
  if (!order_.empty()) place_ = place_in(order_, rank, world_size);
  if (std::is_sorted(order_.begin(), order_.end())) order_.clear();
  strides_.resize(axes_.size());
  coordinates_.resize(axes_.size());
  int stride = 1;
  for (std::size_t i = axes_.size(); i-- > 0;) {
    strides_[i] = stride;
    coordinates_[i] = place_ / stride % axes_[i].size;
    stride *= axes_[i].size;
  }
}

int Mesh::size() const {
  int ranks = 1;
  for (const MeshAxis& axis : axes_) ranks *= axis.size;
  return ranks;
}

bool Mesh::has(std::string_view axis) const {
  return std::any_of(axes_.begin(), axes_.end(), [&](const MeshAxis& known) { return known.name == axis; });
}

std::vector<int> Mesh::ranks_over(const std::vector<std::string>& axes) const {
  std::vector<int> places{place_};
  for (const std::string& axis : axes) {
    const std::size_t i = index_of(axis);
    std::vector<int> more;
    for (const int place : places)
      for (int c = 0; c < axes_[i].size; ++c) more.push_back(place + (c - coordinates_[i]) * strides_[i]);
    places = std::move(more);
  }
  for (int& place : places) place = rank_at(place);
  return places;
}

std::vector<int> Mesh::cut_over(const std::vector<std::string>& axes) const {
  std::vector<int> cut;  // size and stride of each axis; neighbours that are as one axis are one
  for (const std::string& axis : axes) {
    const std::size_t i = index_of(axis);
    if (axes_[i].size == 1) continue;
    if (!cut.empty() && cut.back() == axes_[i].size * strides_[i]) {
      cut[cut.size() - 2] *= axes_[i].size;
      cut.back() = strides_[i];
    } else {
      cut.insert(cut.end(), {axes_[i].size, strides_[i]});
    }
  }
  cut.push_back(0);  // an axis of no rank: what follows is the order
  cut.insert(cut.end(), order_.begin(), order_.end());
  return cut;
}

std::size_t Mesh::index_of(std::string_view axis) const {
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == axis) return i;
  }
  throw Error(ExitCode::config, fmt::format("the mesh has no axis {}", axis));
}

}  // namespace zs
