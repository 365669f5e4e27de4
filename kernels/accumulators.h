#pragma once

#include <cstdint>

#include "kernels/host_device.h"

/// Accumulators: how reduce puts elements together, on every back end from this source.
namespace zs {

enum class ReduceKind : std::uint8_t { sum, max, argmax };

/// Carried in f64.
struct SumAccumulator {
  double value;
};
ZS_HOST_DEVICE void clear(SumAccumulator& sum) { sum.value = 0; }
ZS_HOST_DEVICE void take(SumAccumulator& sum, float x, std::int64_t) { sum.value += static_cast<double>(x); }
ZS_HOST_DEVICE void merge(SumAccumulator& sum, const SumAccumulator& other) { sum.value += other.value; }

/// The largest element and the first place where it is; NaN counts as larger than any other.
struct MaxAccumulator {
  float value;
  std::int64_t at;
};
ZS_HOST_DEVICE bool is_above(float a, float b) { return a > b || (a != a && b == b); }
ZS_HOST_DEVICE void clear(MaxAccumulator& max) { max = {-__builtin_huge_valf(), INT64_MAX}; }
ZS_HOST_DEVICE void merge(MaxAccumulator& max, const MaxAccumulator& other) {
  const bool is_equal = !is_above(max.value, other.value) && !is_above(other.value, max.value);
  if (is_above(other.value, max.value) || (is_equal && other.at < max.at)) max = other;
}
ZS_HOST_DEVICE void take(MaxAccumulator& max, float x, std::int64_t at) { merge(max, {x, at}); }

}  // namespace zs
