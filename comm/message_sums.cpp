#include "comm/message_sums.h"

#include <algorithm>

#include "runtime/base/int8_blocks.h"

namespace zs {
namespace {

constexpr std::int64_t kLineBytes = 64;                          // a line of a cache
constexpr std::int64_t kFoldChunkBytes = std::int64_t{1} << 19;  // at most, for one peer
constexpr std::int64_t kScratchBytes = std::int64_t{8} << 20;    // for all peers, or all hosts, together, at most
// Elements that chunks between hosts are multiples of: whole lines in every dtype, and whole blocks of the comm dtype.
constexpr std::int64_t kUnitElems = kInt8BlockElems, kLeastChunkElems = 1024;

std::int64_t rounded(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

/// Scratch of a reduction of parts of so many bytes.
std::int64_t scratch_of_exchange(int ranks, std::int64_t part_bytes) {
  const std::int64_t chunk = reduce_chunk_bytes(ranks);
  return std::min<std::int64_t>(kMessageSlots, chunks_in(part_bytes, chunk)) * (ranks - 1) *
         room_for_chunk(part_bytes, chunk);
}

std::int64_t scratch_of_parts(const HostMap& map, std::int64_t part_elems, DType dtype) {
  return hier_slots(map) * hier_chunk_elems(map, part_elems, dtype) * size_of(carried(dtype));
}

/// One round: everybody's data, and each host's sum of it.
std::int64_t scratch_of_one_round(const HostMap& map, const Buffer& data) {
  return map.size() * rounded(data.bytes(), kLineBytes) +
         map.hosts() * rounded(data.elems * size_of(carried(data.dtype)), kLineBytes);
}

}  // namespace

std::int64_t reduce_chunk_bytes(int ranks) {
  return std::clamp<std::int64_t>(kScratchBytes / kMessageSlots / std::max(ranks - 1, 1) / kLineBytes * kLineBytes,
                                  4096, kFoldChunkBytes);
}

std::int64_t room_for_chunk(std::int64_t part_bytes, std::int64_t chunk_bytes) {
  return std::min(chunk_bytes, rounded(part_bytes, kLineBytes));
}

std::int64_t message_share_begin(std::int64_t elems, int part, int ranks) {
  const std::int64_t lines = (elems + 15) / 16;
  return std::min(elems, lines * part / ranks * 16);
}

std::int64_t mpi_reduce_scatter_scratch_bytes(int ranks, const Buffer& full) {
  return scratch_of_exchange(ranks, full.bytes() / ranks);
}

std::int64_t mpi_all_reduce_scratch_bytes(int rank, int ranks, const Buffer& data) {
  if (is_one_round(data)) return scratch_of_exchange(ranks, data.bytes());
  const std::int64_t share =
      message_share_begin(data.elems, rank + 1, ranks) - message_share_begin(data.elems, rank, ranks);
  return scratch_of_exchange(ranks, share * size_of(data.dtype));
}

int hier_slots(const HostMap& map) { return 1 + map.most_served() + map.hosts() - 1; }

std::int64_t hier_part_bytes(const Buffer& data, int ranks) {
  return rounded((data.bytes() + ranks - 1) / ranks, kLineBytes);
}

std::int64_t hier_chunk_elems(const HostMap& map, std::int64_t part_elems, DType dtype) {
  const std::int64_t room = kScratchBytes / hier_slots(map) / size_of(carried(dtype)) / kUnitElems * kUnitElems;
  return std::min(std::max(room, kLeastChunkElems), rounded(part_elems, kUnitElems));
}

std::int64_t hier_reduce_scatter_scratch_bytes(const HostMap& map, const Buffer& full) {
  return scratch_of_parts(map, full.elems / map.size(), full.dtype);
}

std::int64_t hier_packed_sum_scratch_bytes(const HostMap& map, const Buffer& full) {
  const std::int64_t elems = full.elems / map.size();
  return scratch_of_parts(map, elems, full.dtype) +
         (hier_slots(map) - 1) * packed_bytes(hier_chunk_elems(map, elems, full.dtype));
}

std::int64_t hier_all_reduce_scratch_bytes(const HostMap& map, const Buffer& data) {
  if (is_one_round(data)) return scratch_of_one_round(map, data);
  return scratch_of_parts(map, hier_part_bytes(data, map.size()) / size_of(data.dtype), data.dtype);
}

}  // namespace zs
