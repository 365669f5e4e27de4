#pragma once

#include "kernels/cpu/vec_pair.h"

/// Sums over interleaved lanes, whose order is the same for every instruction set.
namespace zs::cpu::ZS_ISA {

/// kCount partial sums; element i of a run belongs to lane i mod kCount.
template <int kCount>
struct LanesOf {
  static constexpr int kVectors = kCount / kVectorFloats;
  Vec v[kVectors] = {};

  /// value(k): the k-th vector of kCount elements.
  template <class Value>
  void add_each(Value value) {
    for (int k = 0; k < kVectors; ++k) v[k] += value(k);
  }
  void add(const float* x) {
    add_each([x](int k) { return load_vec(x + k * kVectorFloats); });
  }
  void max(const float* x) {
    for (int k = 0; k < kVectors; ++k) {
      v[k] = higher_of(v[k], load_vec(x + k * kVectorFloats));
    }
  }
  /// Adds to the k-th vector, or to it and the next.
  void add_at(std::int64_t k, Vec x) { v[k] += x; }
  void add_at(std::int64_t k, VecPair x) {
    v[k] += x.v[0];
    v[k + 1] += x.v[1];
  }
  /// Puts every sum to its lane, after pairs that were taken apart.
  void put_together() {
    for (int k = 0; k < kVectors; k += 2) {
      const VecPair x = ZS_ISA::put_together(VecPair{{v[k], v[k + 1]}});
      v[k] = x.v[0];
      v[k + 1] = x.v[1];
    }
  }
  void store(float* out) const {
    for (int k = 0; k < kVectors; ++k) store_vec(out + k * kVectorFloats, v[k]);
  }
};
using Lanes = LanesOf<kLanes>;

template <int kCount>
inline float reduce_sum(LanesOf<kCount> lanes) {
  for (int half = lanes.kVectors / 2; half > 0; half /= 2)
    for (int k = 0; k < half; ++k) lanes.v[k] += lanes.v[k + half];
  float x[kVectorFloats];
  store_vec(x, lanes.v[0]);
  for (int half = kVectorFloats / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x[i] += x[i + half];
  return x[0];
}
template <int kCount>
inline float reduce_max(const LanesOf<kCount>& lanes) {
  float x[kCount];
  lanes.store(x);
  for (int half = kCount / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
  return x[0];
}

/// Lanes in f64.
template <int kCount>
struct DoubleLanes {
  static constexpr int kPerVector = kVectorFloats / 2;
  DoubleVec v[kCount / kPerVector] = {};

  template <bool kSquare, class T>
  void add(const T* x) {
    for (int i = 0; i < kCount / kVectorFloats; ++i) {
      const DoubleHalves wide = widen_at(x + i * kVectorFloats);
      for (int half = 0; half < 2; ++half) {
        DoubleVec& sum = v[2 * i + half];
        sum = kSquare ? fused(wide.v[half], wide.v[half], sum) : sum + wide.v[half];
      }
    }
  }
  double reduce() const {
    double x[kCount];
    for (int i = 0; i < kCount / kPerVector; ++i) *reinterpret_cast<DoubleVecAt*>(x + i * kPerVector) = v[i];
    for (int half = kCount / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) x[i] += x[i + half];
    return x[0];
  }
};

/// out[c] := the parts' columns added in order; parts are `stride` floats apart.
inline void sum_parts(float* out, const float* parts, std::int64_t stride, std::int64_t count, std::int64_t width) {
  for (std::int64_t c = 0; c < width; ++c) out[c] = count > 0 ? parts[c] : 0.0f;
  for (std::int64_t part = 1; part < count; ++part) {
    const float* x = parts + part * stride;
#pragma omp simd
    for (std::int64_t c = 0; c < width; ++c) out[c] += x[c];
  }
}

/// visit(i, part, k) over [0, n), two vectors at a time where it can, k being the vector of a run of kCount elements
/// that element i begins; `together` before what is left of the elements is visited by single vectors, in line.
template <int kCount, Order kOrder, class Visit, class Together>
__attribute__((always_inline)) inline void for_each_in_runs(std::int64_t n, Visit visit, Together together) {
  static_assert(kCount % kPairFloats == 0);
  std::int64_t i = 0;
  for (; i + kCount <= n; i += kCount)
    for (int k = 0; k < kCount / kVectorFloats; k += 2) visit(i + k * kVectorFloats, Two<kOrder>{}, k);
  const std::int64_t run = i;
  for (; i + kPairFloats <= n; i += kPairFloats) visit(i, Two<kOrder>{}, (i - run) / kVectorFloats);
  if (kOrder == Order::apart) together();
  for_each_vec(i, n, [=](std::int64_t at, auto part) { visit(at, part, (at - run) / kVectorFloats); });
}

/// Sum of value(i, part) for i in [0, n), where value gives elements i ..: lane i mod 64, lanes folded last.
template <Order kOrder, class Value>
inline float lane_sum(std::int64_t n, Value value) {
  constexpr int kCount = 4 * kLanes;
  LanesOf<kCount> total;
  for_each_in_runs<kCount, kOrder>(
      n, [&](std::int64_t i, auto part, std::int64_t k) { total.add_at(k, keep(value(i, part), part)); },
      [&] { total.put_together(); });
  return reduce_sum(total);
}

}  // namespace zs::cpu::ZS_ISA
