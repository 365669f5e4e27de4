#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/base/buffer.h"

namespace zs {

/// Elements in 4 bits, NF4 (Dettmers et al. 2023, "QLoRA"), as bitsandbytes makes them: blocks of kNf4BlockElems
/// elements (the last one may be shorter), of which each has the largest magnitude as f32, and for each element the
/// number of one of kNf4Values, which times that magnitude is the element decoded. A byte has two numbers, the first in
/// its upper half. A block with an element that is not finite is decoded as NaN. Packed elements begin with the bytes;
/// the magnitudes follow at nf4_scales_at. Every back end makes the same bits of it, NaNs included.
inline constexpr std::int64_t kNf4BlockElems = 64;

/// Quantiles of the normal distribution, the largest magnitude being 1 (QLoRA, appendix E).
inline constexpr std::array<float, 16> kNf4Values = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

/// Number of blocks that hold `elems` elements.
constexpr std::int64_t nf4_blocks(std::int64_t elems) { return (elems + kNf4BlockElems - 1) / kNf4BlockElems; }
/// The byte of packed elements at which the magnitudes begin.
constexpr std::int64_t nf4_scales_at(std::int64_t elems) { return ((elems + 1) / 2 + 3) / 4 * 4; }
/// Size in bytes of `elems` packed elements: 4 for each block and half of one for each element, rounded up to a
/// multiple of 64.
constexpr std::int64_t nf4_bytes(std::int64_t elems) {
  return (nf4_scales_at(elems) + nf4_blocks(elems) * 4 + 63) / 64 * 64;
}

/// packed (nf4_bytes(elems)), every byte of it := elements (elems).
void pack_nf4(std::byte* packed, const float* elements, std::int64_t elems);
/// elements (slices, n), f32 or bf16 := packed (slices * nf4_bytes(n)).
void unpack_nf4(const Buffer& elements, const std::byte* packed, int slices = 1);

}  // namespace zs
