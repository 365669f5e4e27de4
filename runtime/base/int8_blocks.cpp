#include "runtime/base/int8_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/base/check.h"
#include "runtime/base/dtype.h"

namespace zs {
namespace {

constexpr float kMost = 127;
/// Magnitude below which a block is zero: its scale would lose its digits.
constexpr float kLeast = 1e-35f;

using Block = std::array<float, kInt8BlockElems>;

/// The block that begins at element `at`: as many as there are.
std::int64_t length_at(std::int64_t at, std::int64_t elems) { return std::min(kInt8BlockElems, elems - at); }

template <class T>
void load(Block& block, const Buffer& from, std::int64_t at, std::int64_t n) {
  const auto* source = static_cast<const T*>(from.data) + at;
  for (std::int64_t i = 0; i < n; ++i) block[static_cast<std::size_t>(i)] = static_cast<float>(source[i]);
}

template <class T>
void store(const Buffer& to, std::int64_t at, const Block& block, std::int64_t n) {
  auto* target = static_cast<T*>(to.data) + at;
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = block[static_cast<std::size_t>(i)];
    // A NaN is this one, whatever the processor made of it.
    target[i] = static_cast<T>(value == value ? value : std::numeric_limits<float>::quiet_NaN());
  }
}

void load(Block& block, const Buffer& from, std::int64_t at, std::int64_t n) {
  from.dtype == DType::f32 ? load<float>(block, from, at, n) : load<BFloat16>(block, from, at, n);
}

void store(const Buffer& to, std::int64_t at, const Block& block, std::int64_t n) {
  to.dtype == DType::f32 ? store<float>(to, at, block, n) : store<BFloat16>(to, at, block, n);
}

/// NaN where an element is not finite.
float scale_of(const Block& block, std::int64_t n) {
  float most = 0;
  bool is_finite = true;
  for (std::int64_t i = 0; i < n; ++i) {
    const float magnitude = std::fabs(block[static_cast<std::size_t>(i)]);
    is_finite = is_finite && magnitude <= std::numeric_limits<float>::max();
    most = std::max(most, magnitude);
  }
  if (!is_finite) return std::numeric_limits<float>::quiet_NaN();
  return most < kLeast ? 0 : most / kMost;
}

/// sums := [sums +] the packed elements of the block that begins at element `at`.
void add_block(Block& sums, const std::byte* packed, std::int64_t elems, std::int64_t at, bool is_first) {
  float scale = 0;
  std::memcpy(&scale, packed + int8_scales_at(elems) + at / kInt8BlockElems * 4, sizeof scale);
  const auto* bytes = reinterpret_cast<const std::int8_t*>(packed) + at;
  for (std::int64_t i = 0; i < length_at(at, elems); ++i) {
    const float value = scale * static_cast<float>(bytes[i]);
    float& sum = sums[static_cast<std::size_t>(i)];
    sum = is_first ? value : sum + value;
  }
}

void pack_slice(std::byte* packed, const Buffer& elements) {
  auto* bytes = reinterpret_cast<std::int8_t*>(packed);
  std::byte* const scales = packed + int8_scales_at(elements.elems);
  Block block;
  for (std::int64_t at = 0; at < elements.elems; at += kInt8BlockElems) {
    const std::int64_t n = length_at(at, elements.elems);
    load(block, elements, at, n);
    const float scale = scale_of(block, n);
    std::memcpy(scales + at / kInt8BlockElems * 4, &scale, sizeof scale);
    const float inverse = scale > 0 ? 1 / scale : 0;  // not for NaN either: the bytes do not matter then
    for (std::int64_t i = 0; i < n; ++i) {
      const float value = scale > 0 ? block[static_cast<std::size_t>(i)] * inverse : 0;
      bytes[at + i] = static_cast<std::int8_t>(std::clamp(std::nearbyintf(value), -kMost, kMost));
    }
  }
}

}  // namespace

void pack_int8(std::byte* packed, const Buffer& elements, int slices) {
  const std::int64_t n = elements.elems / slices;
  for (int s = 0; s < slices; ++s) pack_slice(packed + s * packed_bytes(n), elements.slice(s * n, n));
}

void unpack_int8(const Buffer& elements, const std::byte* packed, int slices) {
  const std::int64_t n = elements.elems / slices;
  for (int s = 0; s < slices; ++s) reduce_int8(elements.slice(s * n, n), packed + s * packed_bytes(n), 1, false);
}

void reduce_int8(const Buffer& out, const std::byte* packed, int parts, bool accumulate) {
  ZS_CHECK(parts > 0, "a fold of {} parts", parts);
  Block sums;
  for (std::int64_t at = 0; at < out.elems; at += kInt8BlockElems) {
    const std::int64_t n = length_at(at, out.elems);
    if (accumulate) load(sums, out, at, n);
    for (int p = 0; p < parts; ++p)
      add_block(sums, packed + p * packed_bytes(out.elems), out.elems, at, p == 0 && !accumulate);
    store(out, at, sums, n);
  }
}

}  // namespace zs
