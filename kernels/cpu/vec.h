#pragma once

#include <omp.h>

#include <cstdint>

#include "kernels/cpu/isa.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

/// Foundations of the vector loops: element types, threads, and sums over 16 interleaved lanes. Everything lives in the
/// instruction set's own namespace (see isa.h). Products and sums are not contracted (-ffp-contract=off), so a vector
/// body, its tail and every instruction set give the same bits, except for what goes through `fused`.
namespace zs::cpu::ZS_ISA {

#if defined(__AVX512F__)
constexpr int kVectorFloats = 16;
#elif defined(__AVX2__)
constexpr int kVectorFloats = 8;
#else
constexpr int kVectorFloats = 4;
#endif
constexpr int kLanes = 16;

typedef float Vec __attribute__((vector_size(kVectorFloats * 4)));
typedef double DoubleVec __attribute__((vector_size(kVectorFloats * 4)));
// Vectors in memory, at any address. (Not for locals: a reference to such a type forgets that it is unaligned.)
typedef float VecAt __attribute__((vector_size(kVectorFloats * 4), aligned(1), may_alias));
typedef double DoubleVecAt __attribute__((vector_size(kVectorFloats * 4), aligned(8), may_alias));
typedef std::uint32_t WordVec __attribute__((vector_size(kVectorFloats * 4)));
typedef std::uint16_t Bf16Vec __attribute__((vector_size(kVectorFloats * 2)));
typedef std::uint16_t Bf16VecAt __attribute__((vector_size(kVectorFloats * 2), aligned(2), may_alias));

inline Vec load_vec(const float* x) { return *reinterpret_cast<const VecAt*>(x); }
inline void store_vec(float* out, Vec x) { *reinterpret_cast<VecAt*>(out) = x; }
inline Vec load_vec(const std::uint16_t* x) {
  const Bf16Vec half = *reinterpret_cast<const Bf16VecAt*>(x);
#if defined(__AVX512F__)  // GCC 12 widens in two halves; without a mask its headers warn
  return (Vec)((WordVec)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)half) << 16);
#else
  return (Vec)(__builtin_convertvector(half, WordVec) << 16);
#endif
}
/// Rounds to nearest even; NaN stays NaN.
inline Bf16Vec rounded(Vec x) {
  const WordVec word = (WordVec)x;
  const WordVec nearest = (word & 0x10000u) != 0u ? word + 0x8000u : word + 0x7fffu;
  const WordVec upper = (x == x ? nearest : word | 0x400000u) >> 16;
#if defined(__AVX512F__)
  return (Bf16Vec)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)upper);
#else
  return __builtin_convertvector(upper, Bf16Vec);
#endif
}
inline void store_vec(std::uint16_t* out, Vec x) { *reinterpret_cast<Bf16VecAt*>(out) = rounded(x); }
struct DoubleHalves {
  DoubleVec v[2];
};
/// All of a vector's floats, as doubles.
inline DoubleHalves widen(Vec x) {
#if defined(__AVX512F__)  // GCC 12 converts vectors in smaller pieces
  const __m256 low = _mm512_maskz_extractf32x8_ps(0xff, (__m512)x, 0),
               high = _mm512_maskz_extractf32x8_ps(0xff, (__m512)x, 1);
  return {{(DoubleVec)_mm512_maskz_cvtps_pd(0xff, low), (DoubleVec)_mm512_maskz_cvtps_pd(0xff, high)}};
#elif defined(__AVX2__)
  const __m128 low = _mm256_castps256_ps128((__m256)x), high = _mm256_extractf128_ps((__m256)x, 1);
  return {{(DoubleVec)_mm256_cvtps_pd(low), (DoubleVec)_mm256_cvtps_pd(high)}};
#else
  return {{DoubleVec{x[0], x[1]}, DoubleVec{x[2], x[3]}}};
#endif
}

inline DoubleHalves widen_at(const std::uint16_t* x) { return widen(load_vec(x)); }
inline DoubleHalves widen_at(const float* x) {
#if defined(__AVX512F__)  // halves from memory need no shuffle
  return {{(DoubleVec)_mm512_maskz_cvtps_pd(0xff, _mm256_loadu_ps(x)),
           (DoubleVec)_mm512_maskz_cvtps_pd(0xff, _mm256_loadu_ps(x + 8))}};
#else
  return widen(load_vec(x));
#endif
}

inline Vec fused(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
  return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

inline DoubleVec fused(DoubleVec a, DoubleVec b, DoubleVec c) {
#if defined(__AVX512F__)
  return (DoubleVec)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX2__) && defined(__FMA__)
  return (DoubleVec)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
  return a * b + c;
#endif
}
inline float fused(float a, float b, float c) {
#if defined(__FMA__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
/// a < b ? a : b, in that order: b where one is NaN.
inline float lower_of(float a, float b) { return a < b ? a : b; }
inline Vec lower_of(Vec a, Vec b) {
#if defined(__AVX512F__)  // GCC 12 takes two instructions otherwise
  return (Vec)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Vec)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}
/// a > b ? a : b
inline Vec higher_of(Vec a, Vec b) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}
/// A constant as a float or in every lane.
template <class V>
inline V all(float x) {
  return x - V{};
}

inline std::uint32_t word_of(float x) { return __builtin_bit_cast(std::uint32_t, x); }
inline WordVec word_of(Vec x) { return (WordVec)x; }
inline float float_of(std::uint32_t word) { return __builtin_bit_cast(float, word); }
inline Vec float_of(WordVec word) { return (Vec)word; }

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

/// A whole vector, or the first `count` < kVectorFloats elements of one: what a loop works on at its start and end.
struct Whole {};
struct Part {
  int count;
};

inline Vec keep(Vec x, Whole) { return x; }
/// Zero beyond the part.
inline Vec keep(Vec x, Part part) {
  typedef std::int32_t IntVec __attribute__((vector_size(kVectorFloats * 4)));
  IntVec lane;
  for (int i = 0; i < kVectorFloats; ++i) lane[i] = i;
  return lane < part.count ? x : Vec{};
}
template <class T>
inline Vec load(const T* x, Whole) {
  return load_vec(x);
}
template <class T>
inline Vec load(const T* x, Part part) {
  T whole[kVectorFloats] = {};
  __builtin_memcpy(whole, x, static_cast<std::size_t>(part.count) * sizeof(T));
  return load_vec(whole);
}
template <class T>
inline void store(T* out, Vec x, Whole) {
  store_vec(out, x);
}
template <class T>
inline void store(T* out, Vec x, Part part) {
  T whole[kVectorFloats];
  store_vec(whole, x);
  __builtin_memcpy(out, whole, static_cast<std::size_t>(part.count) * sizeof(T));
}
#if defined(__AVX512F__)
inline __mmask16 mask_of(Part part) { return static_cast<__mmask16>((1u << part.count) - 1); }
inline Vec load(const float* x, Part part) { return (Vec)_mm512_maskz_loadu_ps(mask_of(part), x); }
inline Vec load(const std::uint16_t* x, Part part) {
  const __m256i half = _mm256_maskz_loadu_epi16(mask_of(part), x);
  return (Vec)((WordVec)_mm512_maskz_cvtepu16_epi32(0xffff, half) << 16);
}
inline void store(float* out, Vec x, Part part) { _mm512_mask_storeu_ps(out, mask_of(part), (__m512)x); }
inline void store(std::uint16_t* out, Vec x, Part part) {
  _mm256_mask_storeu_epi16(out, mask_of(part), (__m256i)rounded(x));
}
#endif

/// visit(i, Whole{} or Part) over [begin, end), vector by vector.
template <class Visit>
__attribute__((always_inline)) inline void for_each_vec(std::int64_t begin, std::int64_t end, Visit visit) {
  std::int64_t i = begin;
  for (; i + kVectorFloats <= end; i += kVectorFloats) visit(i, Whole{});
  if (i < end) visit(i, Part{static_cast<int>(end - i)});
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

/// Work of `count` equal items, given out in ranges that start at a multiple of `align`; a thread gets at least `grain`
/// items.
struct Split {
  int threads;
  std::int64_t count, grain, align;
};
inline Split split_elements(int threads, std::int64_t n) { return {threads, n, 16384, 64}; }
inline Split split_rows(int threads, std::int64_t rows, std::int64_t elems_per_row) {
  return {threads, rows, max_of(1, 16384 / max_of(1, elems_per_row)), 1};
}

/// One copy of each loop, whichever way it is reached: inlined into its caller, GCC 12 left some of them scalar. By
/// value, so that the compiler knows that no store reaches what the body has captured.
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

}  // namespace zs::cpu::ZS_ISA
