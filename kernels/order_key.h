#pragma once

#include <cstdint>

#include "kernels/host_device.h"

/// Numbers by which elements are ordered, on every back end from this source: unsigned ones that are in the order of
/// the elements, the same for equal elements.
namespace zs {

ZS_HOST_DEVICE std::uint32_t order_key_of(std::int32_t x) { return static_cast<std::uint32_t>(x) ^ 0x80000000u; }

/// NaN is the largest, and -0 is 0.
ZS_HOST_DEVICE std::uint32_t order_key_of(float x) {
  if (x != x) return 0xffffffffu;
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

}  // namespace zs
