#include "runtime/shard/bucket_copy.h"

#include <set>
#include <utility>

namespace zs {
namespace {

/// Of one shard, in the order of the shard, as far as the part has it.
std::vector<ShardSegment> segments_of(const UnitLayout& layout, const BucketPart& part, int shard) {
  std::vector<ShardSegment> segments = layout.segments(part.first + shard);
  std::erase_if(segments, [&](const ShardSegment& segment) { return segment.shard_offset >= part.shard_elems; });
  return segments;
}

/// From the first element of a segment to its last.
Buffer rows_of(const Buffer& full, const FlatView& view, const ShardSegment& segment) {
  return full.slice(view.offset + segment.view_offset, (segment.runs() - 1) * segment.stride + segment.run);
}

void copy_shard_in(ExecContext& exec, const KernelTable& kernels, const UnitLayout& layout, const std::vector<ShardSegment>& segments,
                   const Buffer& full, const Buffer& shard) {
  std::int64_t end = 0;
  for (const ShardSegment& segment : segments) {
    if (segment.shard_offset > end) kernels.zero(exec, shard.slice(end, segment.shard_offset - end));
    end = segment.shard_offset + segment.count;
    kernels.copy_rows(exec, shard.slice(segment.shard_offset, segment.count), rows_of(full, layout.views()[segment.view], segment),
                      {segment.runs(), segment.run, segment.run, segment.stride});
  }
  if (end < shard.elems) kernels.zero(exec, shard.slice(end, shard.elems - end));
}

}  // namespace

void copy_out(Stream& stream, const KernelTable& kernels, const FlatParameter& unit, const Buffer& bucket, const Buffer& full) {
  std::vector<Buffer> writes;
  for (const FlatView& view : unit.layout->views()) {
    if (!view.is_whole && view.numel > 0) writes.push_back(full.slice(view.offset, view.numel));
  }
  const BucketPart part{0, unit.layout->ranks(), unit.layout->gathered_shard_elems()};
  stream.enqueue(
      {"copy_out:" + unit.name, {bucket}, std::move(writes)}, [&kernels, layout = unit.layout, part, bucket, full](ExecContext& exec) {
        for (int i = 0; i < part.shards; ++i) {
          const Buffer shard = bucket.slice(i * part.shard_elems, part.shard_elems);
          for (const ShardSegment& segment : segments_of(*layout, part, i)) {
            kernels.copy_rows(exec, rows_of(full, layout->views()[segment.view], segment), shard.slice(segment.shard_offset, segment.count),
                              {segment.runs(), segment.run, segment.stride, segment.run});
          }
        }
      });
}

void copy_in(Stream& stream, const KernelTable& kernels, const FlatParameter& unit, const BucketPart& part, const Buffer& full,
             const Buffer& bucket) {
  std::set<std::size_t> views;
  for (int i = 0; i < part.shards; ++i) {
    for (const ShardSegment& segment : segments_of(*unit.layout, part, i)) views.insert(segment.view);
  }
  std::vector<Buffer> reads;
  for (const std::size_t i : views) reads.push_back(full.slice(unit.layout->views()[i].offset, unit.layout->views()[i].numel));
  stream.enqueue(
      {"copy_in:" + unit.name, std::move(reads), {bucket}}, [&kernels, layout = unit.layout, part, bucket, full](ExecContext& exec) {
        for (int i = 0; i < part.shards; ++i) {
          copy_shard_in(exec, kernels, *layout, segments_of(*layout, part, i), full, bucket.slice(i * part.shard_elems, part.shard_elems));
        }
      });
}

}  // namespace zs
