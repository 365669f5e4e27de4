#include "runtime/base/nf4_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/base/dtype.h"

namespace zs {
namespace {

/// Magnitude that takes the place of a smaller one where it divides.
constexpr float kLeastDivisor = 1e-38f;

/// Bounds between the values: an element above bound i, and not above the next, is nearest to value i + 1.
constexpr std::array<float, 15> kBounds = [] {
  std::array<float, 15> bounds{};
  for (std::size_t i = 0; i < bounds.size(); ++i) bounds[i] = (kNf4Values[i] + kNf4Values[i + 1]) / 2;
  return bounds;
}();

/// NaN where an element is not finite.
float most_of(const float* elements, std::int64_t n) {
  float most = 0;
  bool is_finite = true;
  for (std::int64_t i = 0; i < n; ++i) {
    const float magnitude = std::fabs(elements[i]);
    is_finite = is_finite && magnitude <= std::numeric_limits<float>::max();
    most = std::max(most, magnitude);
  }
  return is_finite ? most : std::numeric_limits<float>::quiet_NaN();
}

unsigned number_of(float x) {
  unsigned number = 0;
  for (const float bound : kBounds) number += x > bound ? 1u : 0u;
  return number;
}

/// Numbers of the block's elements, two a byte.
void pack_block(std::byte* packed, const float* elements, std::int64_t n, float most) {
  const float inverse = 1.0f / std::max(most, kLeastDivisor);  // NaN makes NaN: the bytes do not matter then
  const auto at = [&](std::int64_t i) { return i < n ? std::clamp(elements[i] * inverse, -1.0f, 1.0f) : 0.0f; };
  for (std::int64_t i = 0; i < n; i += 2)
    packed[i / 2] = static_cast<std::byte>(number_of(at(i)) << 4 | number_of(at(i + 1)));
}

template <class T>
void unpack_slice(T* elements, const std::byte* packed, std::int64_t elems) {
  std::array<T, 16> values;
  for (std::int64_t at = 0; at < elems; at += kNf4BlockElems) {
    float most = 0;
    std::memcpy(&most, packed + nf4_scales_at(elems) + at / kNf4BlockElems * 4, sizeof most);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float value = kNf4Values[i] * most;
      // A NaN is this one, whatever the processor made of it.
      values[i] = static_cast<T>(value == value ? value : std::numeric_limits<float>::quiet_NaN());
    }
    const std::int64_t n = std::min(kNf4BlockElems, elems - at);
    for (std::int64_t i = 0; i < n; ++i) {
      const auto both = static_cast<unsigned>(packed[(at + i) / 2]);
      elements[at + i] = values[i % 2 == 0 ? both >> 4 : both & 15u];
    }
  }
}

}  // namespace

void pack_nf4(std::byte* packed, const float* elements, std::int64_t elems) {
  std::memset(packed, 0, static_cast<std::size_t>(nf4_bytes(elems)));
  for (std::int64_t at = 0; at < elems; at += kNf4BlockElems) {
    const std::int64_t n = std::min(kNf4BlockElems, elems - at);
    const float most = most_of(elements + at, n);
    std::memcpy(packed + nf4_scales_at(elems) + at / kNf4BlockElems * 4, &most, sizeof most);
    pack_block(packed + at / 2, elements + at, n, most);
  }
}

void unpack_nf4(const Buffer& elements, const std::byte* packed, int slices) {
  const std::int64_t n = elements.elems / slices;
  for (int s = 0; s < slices; ++s) {
    const std::byte* const slice = packed + s * nf4_bytes(n);
    elements.dtype == DType::f32 ? unpack_slice(elements.as<float>() + s * n, slice, n)
                                 : unpack_slice(elements.as<BFloat16>() + s * n, slice, n);
  }
}

}  // namespace zs
