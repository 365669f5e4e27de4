#include "runtime/shard/placement/per_parameter_layout.h"

#include <algorithm>

namespace zs {
namespace {

/// A parameter as (outer, rows, inner), rows being those of the dim that is cut.
struct Rows {
  std::int64_t outer = 1, rows = 1, inner = 1;

  explicit Rows(const FlatView& view) {
    for (int i = 0; i < view.shape.rank(); ++i) (i < view.dim ? outer : i == view.dim ? rows : inner) *= view.shape[i];
  }
  /// Most rows for each rank.
  std::int64_t each(int ranks) const { return (rows + ranks - 1) / ranks; }
};

}  // namespace

std::vector<int> chosen_dims(const LayoutOptions& options, const std::vector<Parameter*>& parameters) {
  std::vector<int> dims;
  for (const Parameter* parameter : parameters) {
    const int rank = std::max(1, parameter->shape().rank()),
              chosen = options.dim ? options.dim(parameter->name(), parameter->shape()) : 0;
    if (chosen < -rank || chosen >= rank) {
      throw Error(
          ExitCode::config,
          fmt::format("parameter {} of shape {} has no dim {}", parameter->name(), parameter->shape().str(), chosen),
          {}, "shard it on a dim that it has");
    }
    dims.push_back(chosen < 0 ? chosen + rank : chosen);
  }
  return dims;
}

PerParameterLayout::PerParameterLayout(const std::vector<Parameter*>& parameters, const std::vector<int>& dims,
                                       std::int64_t min_shard_bytes, DType runtime_dtype, const Cut& cut)
    : UnitLayout(cut.ranks) {
  const int finest = std::max(cut.finest, ranks_);
  ZS_CHECK(ranks_ >= 1 && finest % ranks_ == 0, "{} ranks, {} slices", ranks_, finest);
  ZS_CHECK(dims.size() == parameters.size(), "{} dims of {} parameters", dims.size(), parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    FlatView view = view_of(*parameters[i]);
    view.dim = dims[i];
    view.is_whole = view.numel * size_of(runtime_dtype) < min_shard_bytes;
    numel_ += view.numel;
    views_.push_back(std::move(view));
  }
  const std::int64_t align = kAlignBytes / size_of(runtime_dtype), slices = finest / ranks_;
  place_sharded(align, slices);
  place_whole(align, slices);
}

void PerParameterLayout::place_sharded(std::int64_t align, std::int64_t slices) {
  std::int64_t full_end = 0, shard_end = 0;
  for (FlatView& view : views_) {
    slots_.push_back(shard_end);
    if (view.is_whole) continue;
    const Rows rows(view);
    view.offset = full_end;
    full_end += round_up(view.numel, align);
    shard_end += round_up(rows.outer * rows.each(ranks_) * rows.inner, align);
  }
  gathered_shard_elems_ = round_up(shard_end, align * slices);
}

void PerParameterLayout::place_whole(std::int64_t align, std::int64_t slices) {
  std::int64_t end = gathered_elems();
  for (FlatView& view : views_) {
    if (!view.is_whole) continue;
    view.offset = end;
    end += round_up(view.numel, align);
  }
  const std::int64_t whole = end - gathered_elems();
  shard_elems_ = gathered_shard_elems_ + round_up((whole + ranks_ - 1) / ranks_, align * slices);
}

std::vector<ShardSegment> PerParameterLayout::segments(int rank) const {
  check_rank(rank);
  std::vector<ShardSegment> segments;
  for (std::size_t i = 0; i < views_.size(); ++i) {
    if (views_[i].is_whole) continue;
    const Rows rows(views_[i]);
    const std::int64_t first = std::min(rows.rows, rank * rows.each(ranks_)),
                       last = std::min(rows.rows, first + rows.each(ranks_));
    const std::int64_t run = (last - first) * rows.inner, count = rows.outer * run, stride = rows.rows * rows.inner;
    if (count == 0) continue;
    const bool is_dense = rows.outer == 1 || run == stride;
    segments.push_back({i, slots_[i], first * rows.inner, count, is_dense ? count : run, is_dense ? count : stride});
  }
  const std::int64_t part = shard_elems_ - gathered_shard_elems_, begin = gathered_elems() + rank * part;
  cut(segments, true, {begin, begin + part}, gathered_shard_elems_);
  return segments;
}

}  // namespace zs
