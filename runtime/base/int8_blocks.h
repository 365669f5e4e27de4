#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/buffer.h"

namespace zs {

/// Elements as integers: blocks of kInt8BlockElems elements (the last one may be shorter), of which each has one
/// byte an element, from -127 to 127, and an f32 scale. A decoded element differs from the original by at most 1/254 of
/// the largest magnitude in its block, and by the rounding of f32 and of its own dtype. A block with an element that is
/// not finite is decoded as NaN. Packed elements begin with the bytes; the scales follow at int8_scales_at. Every back
/// end makes the same bits of it, NaNs included.
inline constexpr std::int64_t kInt8BlockElems = 256;

/// Number of blocks that hold `elems` elements.
constexpr std::int64_t int8_blocks(std::int64_t elems) { return (elems + kInt8BlockElems - 1) / kInt8BlockElems; }
/// The byte of packed elements at which the scales begin.
constexpr std::int64_t int8_scales_at(std::int64_t elems) { return (elems + 3) / 4 * 4; }
/// Size in bytes of `elems` packed elements: 4 for each block and 1 for each element, rounded up to a multiple of 64.
constexpr std::int64_t packed_bytes(std::int64_t elems) { return (int8_blocks(elems) * 4 + elems + 63) / 64 * 64; }

/// packed (slices * packed_bytes(n)) := elements (slices, n), f32 or bf16, each slice by itself.
void pack_int8(std::byte* packed, const Buffer& elements, int slices = 1);
/// elements (slices, n), f32 or bf16 := packed.
void unpack_int8(const Buffer& elements, const std::byte* packed, int slices = 1);
/// out (n), f32 or bf16 := [out +] the sum of the parts, packed (parts * packed_bytes(n)), in f32, in their order;
/// rounded once. A NaN is 0x7fc00000, or 0x7fc0.
void reduce_int8(const Buffer& out, const std::byte* packed, int parts, bool accumulate);

}  // namespace zs
