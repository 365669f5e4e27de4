#pragma once

#include "kernels/cpu/vec.h"

/// Elementary functions as straight-line code on a float or a vector of them, the same bits either way; no libm call,
/// no branch. They fuse multiplication and addition where the processor can.
namespace zs::cpu::ZS_ISA {

enum class Precision { full, bf16 };

/// e^x. Relative error below 1.8e-7 + 3e-9 |x| (full), or 6e-6 (for results that will be rounded to bf16). 0 below
/// -87.33 (no subnormals), e^88 above 88, NaN for NaN. Reduction: Cephes expf (Moshier); polynomials: minimax on
/// +-ln(2)/2 with 1 + x kept.
template <Precision kPrecision = Precision::full, class V>
__attribute__((always_inline)) inline V exp_of(V x) {
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const V capped = lower_of(all<V>(88.0f), x);
  const V shifted = fused(capped, all<V>(kLog2E), all<V>(kRound));
  const V n = shifted - kRound;
#if defined(__FMA__)
  const V r = fused(n, all<V>(-0.693147180559945f), capped);
#else  // n * ln(2) would be rounded: two constants, of which the first has few bits
  const V r = (capped - n * 0.693359375f) - n * -2.12194440e-4f;
#endif
  V p;
  if constexpr (kPrecision == Precision::full) {
    p = fused(r, all<V>(8.312521502e-3f), all<V>(4.189014807e-2f));
    p = fused(p, r, all<V>(1.66671142e-1f));
    p = fused(p, r, all<V>(4.99992311e-1f));
  } else {
    p = fused(r, all<V>(4.1277688e-2f), all<V>(1.675352752e-1f));
    p = fused(p, r, all<V>(5.000512004e-1f));
  }
  p = fused(fused(p, r, all<V>(1.0f)), r, all<V>(1.0f));
  const V power = float_of((word_of(shifted) << 23) + 0x3f800000u);  // 2^n: the shift drops what kRound has added
  return x < -87.33f ? V{} : p * power;
}

/// 1 / x for x >= 1, relative error below 2.5e-7: an estimate and a step or two of Newton's, where the processor
/// estimates; a division takes as long as eight multiplications.
__attribute__((always_inline)) inline Vec inverse_of(Vec x) {
#if defined(__AVX512F__)
  constexpr int kSteps = 1;
  Vec y = (Vec)_mm512_maskz_rcp14_ps(0xffff, (__m512)x);
#elif defined(__AVX2__) && defined(__FMA__)
  constexpr int kSteps = 2;
  Vec y = (Vec)_mm256_rcp_ps((__m256)x);
#else
  constexpr int kSteps = 0;
  Vec y = 1.0f / x;
#endif
  for (int i = 0; i < kSteps; ++i) y = fused(y, fused(-x, y, all<Vec>(1.0f)), y);
  return y;
}

/// erfc(a) for a >= 0, given e^(-a^2); relative error about 1e-6 in the tail, 1e-7 near 0. Polynomials: Cephes erff and
/// erfcf (Moshier).
__attribute__((always_inline)) inline Vec erfc_of(Vec a, Vec exp_minus_square) {
  using V = Vec;
  const auto polynomial = [](V x, auto first, auto... rest) {
    V sum = all<V>(first);
    ((sum = fused(sum, x, all<V>(rest))), ...);
    return sum;
  };
  const V square = a * a;
  const V t = polynomial(square, 7.853861353153693e-5f, -8.010193625184903e-4f, 5.188327685732524e-3f,
                         -2.685381193529856e-2f, 1.128358514861418e-1f, -3.761262582423300e-1f, 1.128379165726710f);
  const V q = inverse_of(higher_of(a, all<V>(1.0f))), y = q * q;
  const V p = polynomial(y, 2.326819970068386e-2f, -1.387039388740657e-1f, 3.687424674597105e-1f,
                         -5.824733027278666e-1f, 6.210004621745983e-1f, -4.944515323274145e-1f, 3.404879937665872e-1f,
                         -2.741127028184656e-1f, 5.638259427386472e-1f);
  const V r = polynomial(y, -1.047766399936249e+1f, 1.297719955372516e+1f, -7.495518717768503f, 2.921019019210786f,
                         -1.015265279202700f, 4.218463358204948e-1f, -2.820767439740514e-1f, 5.641895067754075e-1f);
  const V tail = exp_minus_square * q * (a < 2.0f ? p : r);
  return a < 1.0f ? 1.0f - a * t : tail;
}

}  // namespace zs::cpu::ZS_ISA
