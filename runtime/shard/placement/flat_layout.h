#pragma once

#include "runtime/shard/placement/unit_layout.h"

namespace zs {

/// The *flat* layout of one unit over `ranks` ranks: parameters concatenated in order, every view and every shard
/// boundary on a multiple of 64 bytes of the runtime dtype, the end padded so that all shards are equal. `finest`
/// slices, a multiple of `ranks`, must be possible too: parts of a unit may be cut finer than its shards. Offsets of
/// views do not depend on the number of ranks. Elements outside every segment are padding: zero, and never seen by
/// optimizer or norm. `align_elems`: views and boundaries are on multiples of so many elements, too.
class FlatLayout final : public UnitLayout {
 public:
  FlatLayout(const std::vector<Parameter*>& parameters, DType runtime_dtype, int ranks, int finest = 1,
             std::int64_t align_elems = 1);

  bool is_interleaved() const override { return false; }
  std::vector<ShardSegment> segments(int rank) const override;
};

}  // namespace zs
