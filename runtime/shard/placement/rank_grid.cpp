#include "runtime/shard/placement/rank_grid.h"

#include <algorithm>

namespace zs {
namespace {

std::vector<MeshAxis> mesh_axes(const std::vector<GridAxis>& axes, int ranks) {
  if (axes.empty()) return {{"data", ranks}};
  std::vector<MeshAxis> of_mesh;
  for (const GridAxis& axis : axes) of_mesh.push_back({axis.name, axis.size});
  return of_mesh;
}

std::vector<std::string> data_axes(const std::vector<GridAxis>& axes) {
  if (axes.empty()) return {"data"};
  std::vector<std::string> names;
  for (const GridAxis& axis : axes)
    if (axis.reads_data) names.push_back(axis.name);
  return names;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

RankGrid::RankGrid(const std::vector<GridAxis>& axes, int rank, int ranks)
    : mesh_(mesh_axes(axes, ranks), rank, ranks), data_axes_(data_axes(axes)) {}

bool RankGrid::reads_data(const std::string& axis) const {
  mesh_.size(axis);  // an Error where there is none
  return contains(data_axes_, axis);
}

std::vector<std::string> RankGrid::axes_of_same_data() const {
  std::vector<std::string> axes;
  for (const MeshAxis& axis : mesh_.axes())
    if (!contains(data_axes_, axis.name)) axes.push_back(axis.name);
  return axes;
}

DataShare RankGrid::data_share() const {
  DataShare share(0, 1);
  for (const std::string& axis : data_axes_) {
    share.index = share.index * mesh_.size(axis) + mesh_.coordinate(axis);
    share.count *= mesh_.size(axis);
  }
  return share;
}

SubGrid RankGrid::sub_grid(const std::vector<std::string>& partition) const {
  for (const std::string& axis : partition) mesh_.size(axis);  // an Error where there is none
  SubGrid grid{.beside = {}, .order = {}, .rank = mesh_.rank(), .ranks = mesh_.size(), .partition = partition};
  grid.shares = data_share().count;
  std::vector<std::string> beside, shared;
  for (const MeshAxis& axis : mesh_.axes()) {
    const bool is_shared = contains(data_axes_, axis.name) && !contains(partition, axis.name);
    (is_shared ? shared : beside).push_back(axis.name);
    if (!is_shared) grid.beside.push_back(axis);
  }
  const std::vector<int> own = mesh_.ranks_over(shared);
  grid.index = static_cast<int>(std::find(own.begin(), own.end(), mesh_.rank()) - own.begin());
  grid.size = static_cast<int>(own.size());
  for (const int first : mesh_.at(own.front()).ranks_over(beside)) {
    const std::vector<int> group = mesh_.at(first).ranks_over(shared);
    grid.order.insert(grid.order.end(), group.begin(), group.end());
  }
  return grid;
}

}  // namespace zs
