#pragma once

#include <math.h>

#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/rotary_angle.h"

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
  sin,  ///< angles are in radians
  cos,
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
  // Exact functions of i32, whose bits the operands and the result hold, constants too; what leaves i32 wraps around.
  int_add,
  int_sub,
  int_mul,
  floor_div,  ///< a / b, rounded towards minus infinity; b is not 0
  remainder,  ///< a - b floor_div(a, b)
  int_where,
  int_eq,  ///< here and in int_lt, int_gt: an f32 of 1 where it is so, else 0
  int_lt,
  int_gt,
  // Gradients of a function: a is what came to its value; y is its value, x its argument.
  sqrt_gradient,          ///< b: y
  rsqrt_gradient,         ///< b: y
  tanh_gradient,          ///< b: y
  sin_gradient,           ///< b: x
  cos_gradient,           ///< b: x
  sigmoid_gradient,       ///< b: y
  relu_gradient,          ///< b: x
  silu_gradient,          ///< b: x
  abs_gradient,           ///< b: x; 0 at 0
  divisor_gradient,       ///< b: y, c: divisor
  pow_gradient,           ///< b: x, c: exponent
  pow_exponent_gradient,  ///< b: y, c: x
};

/// An integer op: its operands hold integers.
ZS_HOST_DEVICE constexpr bool is_of_integers(MapOp op) { return op >= MapOp::int_add && op <= MapOp::int_gt; }

ZS_HOST_DEVICE std::int32_t integer_of(float bits) { return __builtin_bit_cast(std::int32_t, bits); }
/// The last 32 bits.
ZS_HOST_DEVICE float bits_of_integer(std::int64_t value) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(value));
}

/// Cosine and sine of an angle in radians, each right but for 0.51 units in the last place. The parts add up to
/// 1 / (2 pi) and have 29 bits each, so that their products with an f32 are exact, and so are those less whole turns.
ZS_HOST_DEVICE Rotation rotation_of(float radians) {
  double turns = 0;
  for (const double part : {0x1.c820ff2p-177, 0x1.5993c4p-150, 0x1.b81b6c5p-119, 0x1.d1f534dp-90, 0x1.4fe13abp-61,
                            0x1.9391054p-32, 0x1.45f306dp-3}) {
    const double product = static_cast<double>(radians) * part;
    turns += product - rint(product);
  }
  return rotation_by(turns);
}

ZS_HOST_DEVICE float sigmoid_of(float x) { return 1.0f / (1.0f + expf(-x)); }

template <MapOp kOp>
ZS_HOST_DEVICE float map_gradient(float a, float b, float c) {
  if constexpr (kOp == MapOp::sqrt_gradient) return a * 0.5f / b;
  if constexpr (kOp == MapOp::rsqrt_gradient) return a * -0.5f * (b * b * b);
  if constexpr (kOp == MapOp::tanh_gradient) return a * (1.0f - b * b);
  if constexpr (kOp == MapOp::sin_gradient) return a * rotation_of(b).cosine;
  if constexpr (kOp == MapOp::cos_gradient) return -a * rotation_of(b).sine;
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
ZS_HOST_DEVICE float map_integers(std::int64_t a, std::int64_t b, std::int64_t c) {
  if constexpr (kOp == MapOp::int_add) return bits_of_integer(a + b);
  if constexpr (kOp == MapOp::int_sub) return bits_of_integer(a - b);
  if constexpr (kOp == MapOp::int_mul) return bits_of_integer(a * b);
  if constexpr (kOp == MapOp::floor_div || kOp == MapOp::remainder) {
    if (b == 0) return 0;  // an error elsewhere
    const std::int64_t quotient = a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
    return bits_of_integer(kOp == MapOp::floor_div ? quotient : a - b * quotient);
  }
  if constexpr (kOp == MapOp::int_where) return bits_of_integer(a != 0 ? b : c);
  if constexpr (kOp == MapOp::int_eq) return a == b ? 1.0f : 0.0f;
  if constexpr (kOp == MapOp::int_lt) return a < b ? 1.0f : 0.0f;
  if constexpr (kOp == MapOp::int_gt) return a > b ? 1.0f : 0.0f;
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
  if constexpr (kOp == MapOp::sin) return rotation_of(a).sine;
  if constexpr (kOp == MapOp::cos) return rotation_of(a).cosine;
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
  if constexpr (is_of_integers(kOp)) return map_integers<kOp>(integer_of(a), integer_of(b), integer_of(c));
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
