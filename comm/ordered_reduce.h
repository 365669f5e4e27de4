#pragma once

#include <cstddef>
#include <span>

#include "comm/communicator.h"

namespace zs {

/// out[i] := [start[i] +] parts[0][i] + parts[1][i] + ... in exactly this order, for every element by itself, so that
/// any cut of the elements gives the same bits. f32 and bf16 are carried in f32 and rounded once; f64 and integers in
/// their own type, integer sums wrap. `out` may be `start` or one of the parts, and overlaps them in no other way.
struct OrderedReduceArgs {
  std::span<const std::byte* const> parts;  ///< one or more, each (elems) of part_dtype
  DType part_dtype;
  const std::byte* start;  ///< (elems) of out_dtype; null: the reduction starts with parts[0]
  std::byte* out;          ///< (elems)
  DType out_dtype;         ///< part_dtype; or f32 where the parts are bf16, or the other way round
  std::int64_t elems;
  ReduceOp op = ReduceOp::sum;
};
void ordered_reduce(const OrderedReduceArgs& args);

inline std::byte* bytes_of(const Buffer& buffer) { return static_cast<std::byte*>(buffer.data); }

/// memcpy that accepts null for zero bytes, and source == destination.
void copy_bytes(void* to, const void* from, std::int64_t bytes);

/// Copies past the caches where the processor can: spares reading what is overwritten, for results too large to stay in
/// a cache anyway.
void stream_bytes(void* to, const void* from, std::int64_t bytes);

/// Copy by which a result of so many bytes is best written.
inline auto copy_for(std::int64_t bytes) {
  // Size of a second-level cache: larger results are streamed
  constexpr std::int64_t kStreamedFrom = std::int64_t{1} << 20;
  return bytes >= kStreamedFrom ? stream_bytes : copy_bytes;
}

}  // namespace zs
