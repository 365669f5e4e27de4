#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/buffer.h"

namespace zs {

/// How the elements of a collective travel. `int8`: blocks of kWireBlockElems elements, each as an f32 scale and one byte an element, a
/// whole number from -127 to 127. A decoded element differs from the original by at most 1/254 of the largest magnitude in its block, and
/// by the rounding of f32 and of its own dtype. A block with an element that is not finite is decoded as NaN.
enum class Wire : std::uint8_t { exact, int8 };

inline constexpr std::int64_t kWireBlockElems = 256;

/// Of `elems` elements: 4 for each block and 1 for each element, rounded up to 64.
std::int64_t packed_bytes(std::int64_t elems);

/// packed (packed_bytes(elems)) := elements (f32 or bf16). Scales first.
void pack_int8(std::byte* packed, const Buffer& elements);
/// elements (f32 or bf16) := packed.
void unpack_int8(const Buffer& elements, const std::byte* packed);
/// out (f32 or bf16) := [out +] the sum of the packed parts, in f32, in their order; rounded once.
void fold_int8(const Buffer& out, std::span<const std::byte* const> parts, bool accumulate);

}  // namespace zs
