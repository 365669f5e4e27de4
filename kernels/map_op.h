#pragma once

#include <math.h>

#include <cstdint>

#include "kernels/host_device.h"

/// Functions that map computes of each element, on every back end from this source. Functions of libm: a unit in the
/// last place or two.
namespace zs {

/// Operations on a, b and c, in that order.
enum class MapOp : std::uint8_t {
  copy,
  add,
  sub,
  mul,
  div,
  pow,
  exp,
  log,
  sqrt,
  rsqrt,
  tanh,
  sigmoid,
  relu,
  silu,
  abs,
  clamp,  ///< a, not below b and not above c
  eq,     ///< here and in lt, gt, within: 1 where it is so, else 0
  lt,
  gt,
  within,  ///< b <= a <= c
  where,   ///< b where a is not 0, else c
  // Gradients of a function: a is what came to its value; y is its value, x its argument.
  sqrt_gradient,          ///< b: y
  rsqrt_gradient,         ///< b: y
  tanh_gradient,          ///< b: y
  sigmoid_gradient,       ///< b: y
  relu_gradient,          ///< b: x
  silu_gradient,          ///< b: x
  abs_gradient,           ///< b: x; 0 at 0
  divisor_gradient,       ///< b: y, c: divisor
  pow_gradient,           ///< b: x, c: exponent
  pow_exponent_gradient,  ///< b: y, c: x
};

ZS_HOST_DEVICE float sigmoid_of(float x) { return 1.0f / (1.0f + expf(-x)); }

template <MapOp kOp>
ZS_HOST_DEVICE float map_gradient(float a, float b, float c) {
  if constexpr (kOp == MapOp::sqrt_gradient) return a * 0.5f / b;
  if constexpr (kOp == MapOp::rsqrt_gradient) return a * -0.5f * (b * b * b);
  if constexpr (kOp == MapOp::tanh_gradient) return a * (1.0f - b * b);
  if constexpr (kOp == MapOp::sigmoid_gradient) return a * b * (1.0f - b);
  if constexpr (kOp == MapOp::relu_gradient) return b > 0.0f ? a : 0.0f;
  if constexpr (kOp == MapOp::silu_gradient) {
    const float gate = sigmoid_of(b);
    return a * gate * (1.0f + b * (1.0f - gate));
  }
  if constexpr (kOp == MapOp::abs_gradient) return b > 0.0f ? a : b < 0.0f ? -a : 0.0f;
  if constexpr (kOp == MapOp::divisor_gradient) return -(a * b) / c;
  if constexpr (kOp == MapOp::pow_gradient) return c == 0.0f ? 0.0f : a * c * powf(b, c - 1.0f);
  if constexpr (kOp == MapOp::pow_exponent_gradient) return c == 0.0f ? 0.0f : a * b * logf(c);
}

template <MapOp kOp>
ZS_HOST_DEVICE float map_value(float a, float b, float c) {
  if constexpr (kOp == MapOp::copy) return a;
  if constexpr (kOp == MapOp::add) return a + b;
  if constexpr (kOp == MapOp::sub) return a - b;
  if constexpr (kOp == MapOp::mul) return a * b;
  if constexpr (kOp == MapOp::div) return a / b;
  if constexpr (kOp == MapOp::pow) return powf(a, b);
  if constexpr (kOp == MapOp::exp) return expf(a);
  if constexpr (kOp == MapOp::log) return logf(a);
  if constexpr (kOp == MapOp::sqrt) return sqrtf(a);
  if constexpr (kOp == MapOp::rsqrt) return 1.0f / sqrtf(a);
  if constexpr (kOp == MapOp::tanh) return tanhf(a);
  if constexpr (kOp == MapOp::sigmoid) return sigmoid_of(a);
  if constexpr (kOp == MapOp::relu) return a < 0.0f ? 0.0f : a;  // NaN stays NaN
  if constexpr (kOp == MapOp::silu) return a * sigmoid_of(a);
  if constexpr (kOp == MapOp::abs) return a < 0.0f ? -a : a + 0.0f;  // -0 gives 0
  if constexpr (kOp == MapOp::clamp) return a < b ? b : a > c ? c : a;
  if constexpr (kOp == MapOp::eq) return a == b ? 1.0f : 0.0f;
  if constexpr (kOp == MapOp::lt) return a < b ? 1.0f : 0.0f;
  if constexpr (kOp == MapOp::gt) return a > b ? 1.0f : 0.0f;
  if constexpr (kOp == MapOp::within) return a >= b && a <= c ? 1.0f : 0.0f;
  if constexpr (kOp == MapOp::where) return a != 0.0f ? b : c;
  if constexpr (kOp >= MapOp::sqrt_gradient) return map_gradient<kOp>(a, b, c);
}

template <MapOp kOp>
struct MapTag {
  static constexpr MapOp value = kOp;
};

/// body(MapTag<op>{})
template <MapOp kFirst = MapOp::copy, class Body>
ZS_HOST_DEVICE void with_map_op(MapOp op, const Body& body) {
  if (op == kFirst) return body(MapTag<kFirst>{});
  if constexpr (kFirst != MapOp::pow_exponent_gradient)
    with_map_op<static_cast<MapOp>(static_cast<int>(kFirst) + 1)>(op, body);
}

}  // namespace zs
