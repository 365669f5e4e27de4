#pragma once

#include <cstdint>

#include "kernels/host_device.h"

/// The 8-bit floating-point format e4m3 (Micikevicius et al. 2022; OCP's "E4M3"): a sign, 4 bits of exponent, 3 of
/// mantissa; no infinities, a largest magnitude of 448, and one NaN a sign. The CPU's kernels and the GPU's read it
/// from here, so that it gives the same bits everywhere.
namespace zs {

static constexpr float kMostE4m3 = 448.0f;

/// `word`, an f32's bits, to the nearest, the even one of two; beyond the largest, and infinity, to the largest.
ZS_HOST_DEVICE std::uint32_t e4m3_of(std::uint32_t word) {
  constexpr std::uint32_t kMost = 0x43e00000u, kLeastNormal = 0x3c800000u, kInfinity = 0x7f800000u;  // 448, 2^-6
  const std::uint32_t sign = word >> 24 & 0x80u;
  std::uint32_t magnitude = word & 0x7fffffffu;
  if (magnitude > kInfinity) return sign | 0x7fu;
  if (magnitude >= kMost) return sign | 0x7eu;
  if (magnitude < kLeastNormal) {  // multiples of 2^-9, which are the last bits of numbers from 2^14 on
    constexpr float kTwoTo14 = 16384.0f;
    const float shifted = __builtin_bit_cast(float, magnitude) + kTwoTo14;
    return sign | (__builtin_bit_cast(std::uint32_t, shifted) - __builtin_bit_cast(std::uint32_t, kTwoTo14));
  }
  magnitude += 0x7ffffu + (magnitude >> 20 & 1u);
  const std::uint32_t code = (magnitude >> 20) - (120u << 3);
  return sign | code;
}

/// The bits of an f32.
ZS_HOST_DEVICE std::uint32_t bits_of_e4m3(std::uint32_t code) {
  const std::uint32_t sign = (code & 0x80u) << 24, exponent = code >> 3 & 15u, mantissa = code & 7u;
  if ((code & 0x7fu) == 0x7fu) return 0x7fc00000u;
  if (exponent != 0) return sign | (exponent + 120u) << 23 | mantissa << 20;
  constexpr float kTwoToMinus9 = 0.001953125f;
  return sign | __builtin_bit_cast(std::uint32_t, static_cast<float>(mantissa) * kTwoToMinus9);
}

}  // namespace zs
