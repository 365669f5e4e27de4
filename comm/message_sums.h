#pragma once

#include <cstdint>

#include "comm/communicator.h"
#include "comm/host/host_map.h"

/// Sizes of what reductions over messages work with: ranks must cut their data alike, and who plans must know the
/// scratch of those who communicate.
namespace zs {

// The first message of an operation stays below the eager limits of vader (4 KiB) and tcp (64 KiB).
inline constexpr std::int64_t kFirstMessageBytes = 3072;
inline constexpr std::int64_t kInlineBytes = kFirstMessageBytes - static_cast<std::int64_t>(sizeof(OpTag));
/// Small data: every rank gets everything and reduces it.
inline bool is_one_round(const Buffer& data) { return data.bytes() <= kInlineBytes; }

/// Chunks that are on their way from one peer, at most.
inline constexpr int kMessageSlots = 4;
/// Number of chunks.
inline std::int64_t chunks_in(std::int64_t bytes, std::int64_t chunk_bytes) {
  return (bytes + chunk_bytes - 1) / chunk_bytes;
}
/// Bytes of a chunk, alike on every rank, whatever it reduces: ranks cut what they send where the receiver expects it.
/// Whole cache lines, and so whole elements of every dtype.
std::int64_t reduce_chunk_bytes(int ranks);
/// Room for one chunk in scratch, in bytes.
std::int64_t room_for_chunk(std::int64_t part_bytes, std::int64_t chunk_bytes);

/// Begin of rank `part`'s share of `elems` in the mpi transport's all-reduce, in elements: a multiple of 16.
std::int64_t message_share_begin(std::int64_t elems, int part, int ranks);
/// Scratch of that transport's reductions: room for at most kMessageSlots chunks from each peer.
std::int64_t mpi_reduce_scatter_scratch_bytes(int ranks, const Buffer& full);
std::int64_t mpi_all_reduce_scratch_bytes(int rank, int ranks, const Buffer& data);

/// Sums of a chunk that the hier transport has in scratch: this rank's own part, those of the ranks that it serves, and
/// the other hosts' of its own part. Packed ones: without its own.
int hier_slots(const HostMap& map);
/// Dtype in which it carries sums.
inline DType carried(DType dtype) { return dtype == DType::bf16 ? DType::f32 : dtype; }
/// Bytes of each rank's part of its all-reduce: equal parts of whole lines, the last ones shorter or empty.
std::int64_t hier_part_bytes(const Buffer& data, int ranks);
/// Elements of a part that it sums up and sends at a time: the same on every rank, so that they meet.
std::int64_t hier_chunk_elems(const HostMap& map, std::int64_t part_elems, DType dtype);
/// Scratch of its reductions.
std::int64_t hier_reduce_scatter_scratch_bytes(const HostMap& map, const Buffer& full);
std::int64_t hier_packed_sum_scratch_bytes(const HostMap& map, const Buffer& full);
std::int64_t hier_all_reduce_scratch_bytes(const HostMap& map, const Buffer& data);

}  // namespace zs
