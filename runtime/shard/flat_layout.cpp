#include "runtime/shard/flat_layout.h"

#include <algorithm>

namespace zs {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

FlatLayout::FlatLayout(const std::vector<Parameter*>& parameters, DType runtime_dtype, int ranks, int finest) : ranks_(ranks) {
  finest = std::max(finest, ranks);
  ZS_CHECK(ranks >= 1 && finest % ranks == 0, "{} ranks, {} slices", ranks, finest);
  const std::int64_t align = kAlignBytes / size_of(runtime_dtype);
  std::int64_t end = 0;
  for (const Parameter* parameter : parameters) {
    FlatView view{parameter->name(),  parameter->shape(),     round_up(end, align),
                  parameter->numel(), parameter->has_decay(), parameter->init()};
    end = view.offset + view.numel;
    numel_ += view.numel;
    views_.push_back(std::move(view));
  }
  shard_elems_ = round_up((end + finest - 1) / finest, align) * (finest / ranks);
}

std::vector<ShardSegment> FlatLayout::segments(int rank) const {
  ZS_CHECK(rank >= 0 && rank < ranks_, "rank {} of {}", rank, ranks_);
  const std::int64_t begin = rank * shard_elems_, end = begin + shard_elems_;
  std::vector<ShardSegment> segments;
  for (std::size_t i = 0; i < views_.size(); ++i) {
    const std::int64_t first = std::max(begin, views_[i].offset), last = std::min(end, views_[i].offset + views_[i].numel);
    if (first < last) segments.push_back({i, first - begin, first - views_[i].offset, last - first});
  }
  return segments;
}

std::vector<std::pair<std::int64_t, std::int64_t>> FlatLayout::padding() const {
  std::vector<std::pair<std::int64_t, std::int64_t>> gaps;
  std::int64_t end = 0;
  for (const FlatView& view : views_) {
    if (view.offset > end) gaps.emplace_back(end, view.offset - end);
    end = view.offset + view.numel;
  }
  if (full_elems() > end) gaps.emplace_back(end, full_elems() - end);
  return gaps;
}

}  // namespace zs
