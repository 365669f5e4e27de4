#pragma once

#include "kernels/cpu/vec.h"

/// Elementary functions as straight-line code that the compiler turns into vectors; no libm call, no branch.
namespace zs::cpu::ZS_ISA {

/// e^x to about 2 ulp. 0 below -87.33 (no subnormals), e^88 above 88, NaN for NaN. Reduction and polynomial: Cephes expf (Moshier).
inline float exp_of(float x) {
  constexpr float kLog2E = 1.44269504088896341f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const float capped = x > 88.0f ? 88.0f : x;
  const float shifted = capped * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (capped - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const std::uint32_t exponent = __builtin_bit_cast(std::uint32_t, shifted) - __builtin_bit_cast(std::uint32_t, kRound) + 127u;
  const float power = __builtin_bit_cast(float, exponent << 23);
  return x < -87.33f ? 0.0f : p * power;
}

/// erfc(a) for a >= 0, given e^(-a^2); relative error about 1e-6 in the tail, 1e-7 near 0. Polynomials: Cephes erff and erfcf (Moshier).
inline float erfc_of(float a, float exp_minus_square) {
  const float square = a * a;
  float t = 7.853861353153693e-5f;
  t = t * square + -8.010193625184903e-4f;
  t = t * square + 5.188327685732524e-3f;
  t = t * square + -2.685381193529856e-2f;
  t = t * square + 1.128358514861418e-1f;
  t = t * square + -3.761262582423300e-1f;
  t = t * square + 1.128379165726710f;
  const float q = 1.0f / (a < 1.0f ? 1.0f : a), y = q * q;
  float p = 2.326819970068386e-2f;
  p = p * y + -1.387039388740657e-1f;
  p = p * y + 3.687424674597105e-1f;
  p = p * y + -5.824733027278666e-1f;
  p = p * y + 6.210004621745983e-1f;
  p = p * y + -4.944515323274145e-1f;
  p = p * y + 3.404879937665872e-1f;
  p = p * y + -2.741127028184656e-1f;
  p = p * y + 5.638259427386472e-1f;
  float r = -1.047766399936249e+1f;
  r = r * y + 1.297719955372516e+1f;
  r = r * y + -7.495518717768503f;
  r = r * y + 2.921019019210786f;
  r = r * y + -1.015265279202700f;
  r = r * y + 4.218463358204948e-1f;
  r = r * y + -2.820767439740514e-1f;
  r = r * y + 5.641895067754075e-1f;
  const float tail = exp_minus_square * q * (a < 2.0f ? p : r);
  return a < 1.0f ? 1.0f - a * t : tail;
}

}  // namespace zs::cpu::ZS_ISA
