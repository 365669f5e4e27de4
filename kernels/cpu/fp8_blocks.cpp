#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/checks.h"
#include "kernels/cpu/host.h"
#include "kernels/families.h"
#include "kernels/fp8.h"
#include "runtime/base/int8_blocks.h"

namespace zs::cpu {
namespace {

// Packing is by one thread: on the host communication packs for itself, on the thread of its stream.

/// Magnitude below which a block is zero: its scale would lose its digits.
constexpr float kLeast = 1e-35f;

template <class T>
float scale_of(const T* elements, std::int64_t n) {
  float most = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const float magnitude = std::fabs(static_cast<float>(elements[i]));
    if (!(magnitude <= std::numeric_limits<float>::max())) return std::numeric_limits<float>::quiet_NaN();
    most = std::max(most, magnitude);
  }
  return most < kLeast ? 0 : most / kMostE4m3;
}

template <class T>
void pack_slice(std::uint8_t* packed, const T* elements, std::int64_t elems) {
  for (std::int64_t at = 0; at < elems; at += kInt8BlockElems) {
    const std::int64_t n = std::min(kInt8BlockElems, elems - at);
    const float scale = scale_of(elements + at, n);
    std::memcpy(packed + int8_scales_at(elems) + at / kInt8BlockElems * 4, &scale, sizeof scale);
    const float inverse = scale > 0 ? 1 / scale : 0;  // not for NaN either: the bytes do not matter then
    for (std::int64_t i = at; i < at + n; ++i) {
      const float value = scale > 0 ? static_cast<float>(elements[i]) * inverse : 0;
      packed[i] = static_cast<std::uint8_t>(e4m3_of(std::bit_cast<std::uint32_t>(value)));
    }
  }
}

template <class T>
void unpack_slice(T* elements, const std::uint8_t* packed, std::int64_t elems) {
  for (std::int64_t i = 0; i < elems; ++i) {
    float scale = 0;
    std::memcpy(&scale, packed + int8_scales_at(elems) + i / kInt8BlockElems * 4, sizeof scale);
    const float value = scale * std::bit_cast<float>(bits_of_e4m3(packed[i]));
    elements[i] = static_cast<T>(value == value ? value : std::numeric_limits<float>::quiet_NaN());
  }
}

/// use(elements, packed) of each slice.
template <class Use>
void for_each_slice(const Buffer& packed, const Buffer& elements, int slices, const Use& use) {
  const std::int64_t n = checks::blocks(packed, elements, slices, true);
  for (int s = 0; s < slices; ++s) {
    auto* const bytes = static_cast<std::uint8_t*>(packed.data) + s * packed_bytes(n);
    elements.dtype == DType::f32 ? use(elements.as<float>() + s * n, bytes, n)
                                 : use(elements.as<BFloat16>() + s * n, bytes, n);
  }
}

void pack_fp8(ExecContext&, Buffer packed, Buffer elements, int slices) {
  for_each_slice(packed, elements, slices,
                 [](const auto* values, std::uint8_t* bytes, std::int64_t n) { pack_slice(bytes, values, n); });
}

void unpack_fp8(ExecContext&, Buffer elements, Buffer packed, int slices) {
  for_each_slice(packed, elements, slices,
                 [](auto* values, const std::uint8_t* bytes, std::int64_t n) { unpack_slice(values, bytes, n); });
}

}  // namespace

void fill_fp8_blocks(KernelTable& table) {
  table.pack_fp8 = pack_fp8;
  table.unpack_fp8 = unpack_fp8;
}

}  // namespace zs::cpu
