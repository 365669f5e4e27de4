#include "runtime/shard/placement/unit_layout.h"

#include <algorithm>

#include "runtime/base/usage_error.h"
#include "runtime/shard/placement/flat_layout.h"
#include "runtime/shard/placement/per_parameter_layout.h"

namespace zs {

std::int64_t ShardSegment::count_before(std::int64_t bound) const {
  const std::int64_t distance = std::max<std::int64_t>(0, bound - view_offset);
  if (run >= count) return std::min(count, distance);
  return std::min(count, distance / stride * run + std::min(distance % stride, run));
}

ShardSegment ShardSegment::within(std::int64_t begin, std::int64_t end) const {
  const std::int64_t from = count_before(begin), elems = count_before(end) - from;
  if (elems == 0) return {view, shard_offset + from, begin, 0, run, stride};
  const bool is_dense = run >= count;
  return {view, shard_offset + from, element(from), elems, is_dense ? elems : run, is_dense ? elems : stride};
}

void UnitLayout::check_rank(int rank) const { ZS_CHECK(rank >= 0 && rank < ranks_, "rank {} of {}", rank, ranks_); }

std::vector<ShardSegment> UnitLayout::held_segments(int rank) const {
  std::vector<ShardSegment> held = segments(rank);
  std::erase_if(held, [&](const ShardSegment& segment) { return views_[segment.view].is_whole; });
  for (std::size_t i = 0; i < views_.size(); ++i) {
    const FlatView& view = views_[i];
    if (view.is_whole && view.numel > 0) held.push_back({i, held_offset(view), 0, view.numel, view.numel, view.numel});
  }
  return held;
}

std::vector<std::pair<std::int64_t, std::int64_t>> UnitLayout::padding() const {
  std::vector<std::pair<std::int64_t, std::int64_t>> used, gaps;
  for (const FlatView& view : views_) used.emplace_back(view.offset, view.numel);
  std::sort(used.begin(), used.end());
  used.emplace_back(full_elems(), 0);
  std::int64_t end = 0;
  for (const auto& [offset, count] : used) {
    if (offset > end) gaps.emplace_back(end, offset - end);
    end = offset + count;
  }
  return gaps;
}

void UnitLayout::cut(std::vector<ShardSegment>& segments, bool of_whole, const Range& range,
                     std::int64_t shard_offset) const {
  for (std::size_t i = 0; i < views_.size(); ++i) {
    const FlatView& view = views_[i];
    if (view.is_whole != of_whole) continue;
    const std::int64_t first = std::max(range.begin, view.offset),
                       count = std::min(range.end, view.offset + view.numel) - first;
    if (count > 0)
      segments.push_back({i, shard_offset + first - range.begin, first - view.offset, count, count, count});
  }
}

FlatView UnitLayout::view_of(const Parameter& parameter) {
  FlatView view{parameter.name(), parameter.shape(), 0, parameter.numel(), parameter.has_decay(), parameter.init()};
  view.part = parameter.part();
  if (view.part.is_whole()) view.matrix_rows = parameter.matrix_rows();
  return view;
}

const char* name_of(Layout layout) { return layout == Layout::flat ? "flat" : "per_parameter"; }

void check(const LayoutOptions& options) {
  if (options.min_shard_bytes < 0)
    throw UsageError(fmt::format("LayoutOptions with min_shard_bytes {}", options.min_shard_bytes), "give 0 or more");
  if (options.layout == Layout::per_parameter || (options.min_shard_bytes == 0 && !options.dim)) return;
  throw Error(ExitCode::config,
              fmt::format("{} does not go with the flat layout",
                          options.dim ? "a choice of dims" : "a size below which parameters stay whole"),
              {}, "use the layout per_parameter");
}

std::shared_ptr<const UnitLayout> make_layout(const LayoutOptions& options, const std::vector<Parameter*>& parameters,
                                              DType runtime_dtype, int ranks, int finest) {
  check(options);
  if (options.layout == Layout::flat) return std::make_shared<FlatLayout>(parameters, runtime_dtype, ranks, finest);
  const std::vector<int> dims = chosen_dims(options, parameters);
  // One rank holds every parameter whole, in whatever layout.
  if (ranks == 1) return std::make_shared<FlatLayout>(parameters, runtime_dtype, ranks, finest);
  return std::make_shared<PerParameterLayout>(parameters, dims, options.min_shard_bytes, runtime_dtype,
                                              PerParameterLayout::Cut{ranks, finest});
}

}  // namespace zs
