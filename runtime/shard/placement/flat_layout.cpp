#include "runtime/shard/placement/flat_layout.h"

#include <algorithm>
#include <numeric>

namespace zs {

FlatLayout::FlatLayout(const std::vector<Parameter*>& parameters, DType runtime_dtype, int ranks, int finest,
                       std::int64_t align_elems)
    : UnitLayout(ranks) {
  finest = std::max(finest, ranks);
  ZS_CHECK(ranks >= 1 && finest % ranks == 0, "{} ranks, {} slices", ranks, finest);
  const std::int64_t align = std::lcm(kAlignBytes / size_of(runtime_dtype), align_elems);
  std::int64_t end = 0;
  for (const Parameter* parameter : parameters) {
    FlatView view = view_of(*parameter);
    view.offset = round_up(end, align);
    end = view.offset + view.numel;
    numel_ += view.numel;
    views_.push_back(std::move(view));
  }
  shard_elems_ = gathered_shard_elems_ = round_up((end + finest - 1) / finest, align) * (finest / ranks);
}

std::vector<ShardSegment> FlatLayout::segments(int rank) const {
  check_rank(rank);
  std::vector<ShardSegment> segments;
  cut(segments, false, {rank * shard_elems_, (rank + 1) * shard_elems_}, 0);
  return segments;
}

}  // namespace zs
