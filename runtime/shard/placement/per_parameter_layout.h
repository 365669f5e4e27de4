#pragma once

#include "runtime/shard/placement/unit_layout.h"

namespace zs {

/// The *per-parameter* layout of one unit: each parameter is cut over the ranks on a dim of its own. Of n rows of that
/// dim rank r has rows [r * c, (r + 1) * c) as far as there are, c = ceil(n / ranks): later ranks may have fewer, or
/// none. A rank's rows lie densely in its shard, on a multiple of 64 bytes of the runtime dtype, in as much room as c
/// rows take; the rest is padding.
///
/// Parameters of fewer than `min_shard_bytes` bytes stay whole: every rank holds all of them, they are not gathered,
/// and only their gradients are cut, one after the other, for the reduction.
class PerParameterLayout final : public UnitLayout {
 public:
  struct Cut {
    int ranks, finest = 1;
  };
  /// `dims`: of each parameter, counted from the first.
  PerParameterLayout(const std::vector<Parameter*>& parameters, const std::vector<int>& dims,
                     std::int64_t min_shard_bytes, DType runtime_dtype, const Cut& cut);

  bool is_interleaved() const override { return true; }
  std::vector<ShardSegment> segments(int rank) const override;

 private:
  void place_sharded(std::int64_t align, std::int64_t slices);
  void place_whole(std::int64_t align, std::int64_t slices);

  std::vector<std::int64_t> slots_;  // for each sharded view: the place in a shard where its rows begin
};

/// The dim that `options` choose for each parameter, counted from the first. A scalar's is 0, as if it had one dim of
/// size 1. Error(config) that names the parameter which has no such dim.
std::vector<int> chosen_dims(const LayoutOptions& options, const std::vector<Parameter*>& parameters);

}  // namespace zs
