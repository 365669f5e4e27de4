#include "runtime/shard/execute/bucket_copy.h"

#include <set>
#include <utility>

namespace zs {
namespace {

/// Segments of one shard, in the order of the shard, as far as the part has it.
std::vector<ShardSegment> segments_of(const UnitLayout& layout, const BucketPart& part, int shard) {
  std::vector<ShardSegment> segments = layout.segments(part.first + shard);
  std::erase_if(segments, [&](const ShardSegment& segment) { return segment.shard_offset >= part.shard_elems; });
  return segments;
}

/// Elements from the first one of a segment to its last.
Buffer rows_of(const Buffer& full, const FlatView& view, const ShardSegment& segment) {
  return full.slice(view.offset + segment.view_offset, (segment.runs() - 1) * segment.stride + segment.run);
}

void copy_shard_in(ExecContext& exec, const KernelTable& kernels, const UnitLayout& layout,
                   const std::vector<ShardSegment>& segments, const Buffer& full, const Buffer& shard) {
  std::int64_t end = 0;
  for (const ShardSegment& segment : segments) {
    if (segment.shard_offset > end) kernels.zero(exec, shard.slice(end, segment.shard_offset - end));
    end = segment.shard_offset + segment.count;
    kernels.copy_rows(exec, shard.slice(segment.shard_offset, segment.count),
                      rows_of(full, layout.views()[segment.view], segment),
                      {segment.runs(), segment.run, segment.run, segment.stride});
  }
  if (end < shard.elems) kernels.zero(exec, shard.slice(end, shard.elems - end));
}

/// The views that a part has elements of.
std::vector<Buffer> views_in(const UnitLayout& layout, const BucketPart& part, const Buffer& full) {
  // A part with all shards needs no look at each, of which there may be thousands.
  const bool has_all = part.shards == layout.ranks();
  std::set<std::size_t> found;
  for (int i = 0; i < part.shards && !has_all; ++i) {
    for (const ShardSegment& segment : segments_of(layout, part, i)) found.insert(segment.view);
  }
  std::vector<Buffer> views;
  for (std::size_t i = 0; i < layout.views().size(); ++i) {
    const FlatView& view = layout.views()[i];
    const bool is_in = has_all ? !view.is_whole || part.shard_elems == layout.shard_elems() : found.contains(i);
    if (is_in && view.numel > 0) views.push_back(full.slice(view.offset, view.numel));
  }
  return views;
}

}  // namespace

void copy_out(Stream& stream, const KernelTable& kernels, const FlatParameter& unit, const Buffer& bucket,
              const Buffer& full) {
  const BucketPart part{0, unit.layout->ranks(), unit.layout->gathered_shard_elems()};
  const auto work = [&kernels, layout = unit.layout, part, bucket, full](ExecContext& exec) {
    for (int i = 0; i < part.shards; ++i) {
      const Buffer shard = bucket.slice(i * part.shard_elems, part.shard_elems);
      for (const ShardSegment& segment : segments_of(*layout, part, i)) {
        kernels.copy_rows(exec, rows_of(full, layout->views()[segment.view], segment),
                          shard.slice(segment.shard_offset, segment.count),
                          {segment.runs(), segment.run, segment.stride, segment.run});
      }
    }
  };
  stream.enqueue({"copy_out:" + unit.name, {bucket}, views_in(*unit.layout, part, full)}, work);
}

void copy_in(Stream& stream, const KernelTable& kernels, const FlatParameter& unit, const BucketPart& part,
             const Buffer& full, const Buffer& bucket) {
  const auto work = [&kernels, layout = unit.layout, part, bucket, full](ExecContext& exec) {
    for (int i = 0; i < part.shards; ++i) {
      copy_shard_in(exec, kernels, *layout, segments_of(*layout, part, i), full,
                    bucket.slice(i * part.shard_elems, part.shard_elems));
    }
  };
  stream.enqueue({"copy_in:" + unit.name, views_in(*unit.layout, part, full), {bucket}}, work);
}

}  // namespace zs
