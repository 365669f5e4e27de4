#include "runtime/shard/placement/partition.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/name_pattern.h"
#include "runtime/base/usage_error.h"

namespace zs {

std::vector<ParameterPart> parts_of(const std::string& unit, const std::vector<Parameter*>& parameters,
                                    const Partition& partition, const ParameterPart& own, bool reads_data) {
  std::vector<ParameterPart> parts(parameters.size());
  std::vector<bool> is_cut(parameters.size());
  for (std::size_t at = 0; at < partition.dims.size(); ++at) {
    const NamePattern pattern(partition.dims[at].first);
    bool is_used = false;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!pattern.matches(parameters[i]->name())) continue;
      is_used = true;
      if (!is_cut[i]) parts[i] = {partition.dims[at].second, own.index, own.count, {}};
      is_cut[i] = true;
    }
    if (!is_used)
      throw UsageError(fmt::format("unit {}: a partition cuts \"{}\", and no parameter is called so", unit,
                                   partition.dims[at].first),
                       "name parameters as they are called, such as \"*.weight\"");
  }
  const auto uncut = std::find(is_cut.begin(), is_cut.end(), false);
  if (!reads_data || own.is_whole() || uncut == is_cut.end()) return parts;
  throw UsageError(fmt::format("unit {}: parameter {} is not cut over axis {}, whose ranks read different data", unit,
                               parameters[static_cast<std::size_t>(uncut - is_cut.begin())]->name(), partition.axis),
                   "put it into a unit without this partition, whose gradients are summed over them");
}

TensorParts::TensorParts(const Shape& whole, const ParameterPart& part)
    : count_(part.count), numel_(whole.numel() / part.count) {
  std::int64_t inner = 1;  // elements at one index of the cut dim; at least 1, so that empty tensors divide, too
  for (int i = part.dim + 1; i < whole.rank(); ++i) inner *= std::max<std::int64_t>(1, whole[i]);
  const std::vector<std::int64_t> dim{part.dim < whole.rank() ? std::max(whole[part.dim], count_) : count_};
  for (const std::int64_t block : part.blocks.empty() ? dim : part.blocks) {
    blocks_.push_back({row_, block / count_ * inner});
    row_ += blocks_.back().size;
  }
}

}  // namespace zs
