#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/shape.h"
#include "runtime/tensor/parameter.h"

namespace zs {

/// Where one parameter lies in its unit's flat parameter, in elements.
struct FlatView {
  std::string name;
  Shape shape;
  std::int64_t offset = 0, numel = 0;
  bool has_decay = true;
  Init init;
};

/// A run of one view's elements inside one shard.
struct ShardSegment {
  std::size_t view;           ///< index into FlatLayout::views()
  std::int64_t shard_offset;  ///< in the shard
  std::int64_t view_offset;   ///< in the view
  std::int64_t count;
};

/// The *flat* layout of one unit over `ranks` ranks: parameters concatenated in order, every view and every shard boundary
/// on a multiple of 64 bytes of the runtime dtype, the end padded so that all shards are equal. `finest` slices, a multiple of `ranks`,
/// must be possible too: parts of a unit may be cut finer than its shards. Offsets of views do not depend on the number of ranks. Elements
/// outside every segment are padding: zero, and never seen by optimizer or norm.
class FlatLayout {
 public:
  static constexpr std::int64_t kAlignBytes = 64;

  FlatLayout(const std::vector<Parameter*>& parameters, DType runtime_dtype, int ranks, int finest = 1);

  const std::vector<FlatView>& views() const { return views_; }
  int ranks() const { return ranks_; }
  /// Elements of the parameters themselves.
  std::int64_t numel() const { return numel_; }
  std::int64_t shard_elems() const { return shard_elems_; }
  std::int64_t full_elems() const { return shard_elems_ * ranks_; }

  std::vector<ShardSegment> segments(int rank) const;
  /// Ranges (offset, count) of the full buffer that belong to no view, in order.
  std::vector<std::pair<std::int64_t, std::int64_t>> padding() const;

 private:
  std::vector<FlatView> views_;
  int ranks_;
  std::int64_t numel_ = 0, shard_elems_ = 0;
};

}  // namespace zs
