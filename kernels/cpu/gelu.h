#pragma once

#include "kernels/cpu/vec_math.h"
#include "kernels/gelu_silu.h"

/// GELU by tanh, of vectors, within an instruction set.
namespace zs::cpu::ZS_ISA {

/// NaN stays NaN.
__attribute__((always_inline)) inline Vec clamped(Vec x) {
  const Vec low = x < -kMostOfGelu ? all<Vec>(-kMostOfGelu) : x;
  return low > kMostOfGelu ? all<Vec>(kMostOfGelu) : low;
}

/// 0.5 (1 + tanh u) = 1 / (1 + e^(-2u)): no cancellation for negative x. `square` is x^2.
template <Precision kPrecision>
__attribute__((always_inline)) inline Vec tanh_gate(Vec x, Vec square) {
  const Vec power =
      exp_of<kPrecision>(x * fused(square, all<Vec>(-kTwoRootTwoOverPi * kCubic), all<Vec>(-kTwoRootTwoOverPi)));
  return inverse_of(1.0f + power);
}

template <Precision kPrecision>
__attribute__((always_inline)) inline Vec gelu_tanh(Vec x) {
  return x * tanh_gate<kPrecision>(x, x * x);
}
template <Precision kPrecision>
__attribute__((always_inline)) inline Vec gelu_tanh_slope(Vec x) {
  const Vec c = clamped(x), square = c * c, gate = tanh_gate<kPrecision>(c, square);
  const Vec inner = fused(square, all<Vec>(3.0f * kTwoRootTwoOverPi * kCubic), all<Vec>(kTwoRootTwoOverPi));
  return gate * fused(c * (1.0f - gate), inner, all<Vec>(1.0f));
}

}  // namespace zs::cpu::ZS_ISA
