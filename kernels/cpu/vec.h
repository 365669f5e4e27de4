#pragma once

#include <omp.h>

#include <cstdint>

#include "kernels/cpu/isa.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

/// What the vector loops share: element types, threads, and sums over 16 interleaved lanes. Everything lives in the instruction
/// set's own namespace (see isa.h). Products and sums are not contracted (-ffp-contract=off), so a vector body, its
/// tail and every instruction set give the same bits; only attention fuses, through `fused`.
namespace zs::cpu::ZS_ISA {

#if defined(__AVX512F__)
constexpr int kVectorFloats = 16;
#elif defined(__AVX2__)
constexpr int kVectorFloats = 8;
#else
constexpr int kVectorFloats = 4;
#endif
constexpr int kLanes = 16;
constexpr int kChunk = 256;

typedef float Vec __attribute__((vector_size(kVectorFloats * 4)));
typedef double DoubleVec __attribute__((vector_size(kVectorFloats * 4)));
// The same in memory, at any address. (Not for locals: a reference to such a type forgets that it is unaligned.)
typedef float VecAt __attribute__((vector_size(kVectorFloats * 4), aligned(4), may_alias));
typedef float HalfVecAt __attribute__((vector_size(kVectorFloats * 2), aligned(4), may_alias));
typedef double DoubleVecAt __attribute__((vector_size(kVectorFloats * 4), aligned(8), may_alias));

inline Vec load_vec(const float* x) { return *reinterpret_cast<const VecAt*>(x); }
inline void store_vec(float* out, Vec x) { *reinterpret_cast<VecAt*>(out) = x; }
/// Half a vector's floats, as doubles.
inline DoubleVec load_double_vec(const float* x) { return __builtin_convertvector(*reinterpret_cast<const HalfVecAt*>(x), DoubleVec); }

inline Vec fused(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
  return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

using Bf16 = std::uint16_t;

inline float to_float(float x) { return x; }
inline float to_float(Bf16 x) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(x) << 16); }

template <class T>
inline T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
/// Rounds to nearest even; NaN stays NaN.
template <>
inline Bf16 from_float<Bf16>(float x) {
  const std::uint32_t word = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (word >> 16) | 0x40u;
  return static_cast<Bf16>((word & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/// Calls f with a value of the element type.
template <class F>
inline void with_type(Data data, F f) {
  if (data.is_bf16) {
    f(Bf16{});
  } else {
    f(float{});
  }
}
template <class T>
inline T* elements(Data data) {
  return static_cast<T*>(data.address);
}

inline std::int64_t min_of(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
inline std::int64_t max_of(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

/// Work of `count` equal items, given out in ranges that start at a multiple of `align`; a thread gets at least `grain` items.
struct Split {
  int threads;
  std::int64_t count, grain, align;
};
inline Split split_elements(int threads, std::int64_t n) { return {threads, n, 16384, 64}; }
inline Split split_rows(int threads, std::int64_t rows, std::int64_t elems_per_row) {
  return {threads, rows, max_of(1, 16384 / max_of(1, elems_per_row)), 1};
}

/// One copy of each loop, whichever way it is reached: inlined into its caller, GCC 12 left some of them scalar. By value, so that the
/// compiler knows that no store reaches what the body has captured.
template <class Body>
__attribute__((noinline)) void run_range(Body body, std::int64_t begin, std::int64_t end) {
  body(begin, end);
}

/// body(begin, end) on each thread's range; results must not depend on how the items are cut.
template <class Body>
inline void parallel_ranges(const Split& split, Body body) {
  const std::int64_t useful = split.count / max_of(1, split.grain);
  const int team = static_cast<int>(max_of(1, min_of(split.threads, useful)));
  if (team == 1) {
    if (split.count > 0) run_range(body, std::int64_t{0}, split.count);
    return;
  }
#pragma omp parallel num_threads(team)
  {
    const std::int64_t members = omp_get_num_threads(), me = omp_get_thread_num();
    const std::int64_t share = round_up((split.count + members - 1) / members, split.align);
    const std::int64_t begin = min_of(split.count, me * share), end = min_of(split.count, begin + share);
    if (begin < end) run_range(body, begin, end);
  }
}

/// 16 partial sums; element i of a chunk belongs to lane i mod 16.
struct Lanes {
  Vec v[kLanes / kVectorFloats] = {};

  void add(const float* x) {
    for (int i = 0; i < kLanes / kVectorFloats; ++i) v[i] += load_vec(x + i * kVectorFloats);
  }
  void add(const Lanes& other) {
    for (int i = 0; i < kLanes / kVectorFloats; ++i) v[i] += other.v[i];
  }
  void max(const float* x) {
    for (int i = 0; i < kLanes / kVectorFloats; ++i) {
      const Vec other = load_vec(x + i * kVectorFloats);
      v[i] = v[i] > other ? v[i] : other;
    }
  }
  void store(float* out) const {
    for (int i = 0; i < kLanes / kVectorFloats; ++i) store_vec(out + i * kVectorFloats, v[i]);
  }
};

inline float fold_sum(const Lanes& lanes) {
  float x[kLanes];
  lanes.store(x);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x[i] += x[i + half];
  return x[0];
}
inline float fold_max(const Lanes& lanes) {
  float x[kLanes];
  lanes.store(x);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
  return x[0];
}

/// The same in f64.
struct DoubleLanes {
  static constexpr int kPerVector = kVectorFloats / 2;
  DoubleVec v[kLanes / kPerVector] = {};

  template <bool kSquare>
  void add(const float* x) {
    for (int i = 0; i < kLanes / kPerVector; ++i) {
      const DoubleVec wide = load_double_vec(x + i * kPerVector);
      v[i] += kSquare ? wide * wide : wide;
    }
  }
  double fold() const {
    double x[kLanes];
    for (int i = 0; i < kLanes / kPerVector; ++i) *reinterpret_cast<DoubleVecAt*>(x + i * kPerVector) = v[i];
    for (int half = kLanes / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) x[i] += x[i + half];
    return x[0];
  }
};

/// Writes f(begin) .. f(begin + length - 1) and pads with `padding` to whole lanes; length <= kChunk. Returns the padded length.
template <class F>
inline int fill_chunk(float* chunk, std::int64_t begin, int length, float padding, F f) {
#pragma omp simd
  for (int i = 0; i < length; ++i) chunk[i] = f(begin + i);
  const int padded = static_cast<int>(round_up(length, kLanes));
  for (int i = length; i < padded; ++i) chunk[i] = padding;
  return padded;
}

/// Sum of f(0) .. f(n - 1): lanes within a chunk, chunks in order, lanes folded last.
template <class F>
inline float lane_sum(std::int64_t n, F f) {
  alignas(64) float chunk[kChunk];
  Lanes total;
  for (std::int64_t begin = 0; begin < n; begin += kChunk) {
    const int padded = fill_chunk(chunk, begin, static_cast<int>(min_of(kChunk, n - begin)), 0.0f, f);
    Lanes part;
    for (int i = 0; i < padded; i += kLanes) part.add(chunk + i);
    total.add(part);
  }
  return fold_sum(total);
}

}  // namespace zs::cpu::ZS_ISA
