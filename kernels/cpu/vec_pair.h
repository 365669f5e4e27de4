#pragma once

#include "kernels/cpu/vec.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/// Two vectors at a time: as many bytes as a whole line of memory where vectors are 64 bytes, and bf16 without
/// shuffles. Loops take their elements two vectors at a time, then a vector, then a part of one, and hand the element's
/// index and one of the tags Two, Whole and Part to a body that loads, computes and stores alike for all three.
namespace zs::cpu::ZS_ISA {

/// in_line: the first vector holds the first half of the elements. apart: of bf16 the first holds the even ones, which
/// a shift widens, the second the odd ones, which a mask widens. f32 beside them has to lie like that already
/// (take_apart).
enum class Order { in_line, apart };
template <Order kOrder>
struct Two {};
/// Order for a loop all of whose elements are T, or f32 that was taken apart.
template <class T>
constexpr Order kOwnOrder = sizeof(T) == 2 ? Order::apart : Order::in_line;

constexpr int kPairFloats = 2 * kVectorFloats;

struct VecPair {
  Vec v[2];
};
inline VecPair operator+(VecPair a, VecPair b) { return {{a.v[0] + b.v[0], a.v[1] + b.v[1]}}; }
inline VecPair operator-(VecPair a, VecPair b) { return {{a.v[0] - b.v[0], a.v[1] - b.v[1]}}; }
inline VecPair operator*(VecPair a, VecPair b) { return {{a.v[0] * b.v[0], a.v[1] * b.v[1]}}; }
inline VecPair operator-(VecPair a, float b) { return {{a.v[0] - b, a.v[1] - b}}; }
inline VecPair operator*(VecPair a, float b) { return {{a.v[0] * b, a.v[1] * b}}; }

/// f of each vector.
template <class F>
inline Vec each(F f, Vec x) {
  return f(x);
}
template <class F>
inline Vec each(F f, Vec x, Vec y) {
  return f(x, y);
}
template <class F>
inline VecPair each(F f, VecPair x) {
  return {{f(x.v[0]), f(x.v[1])}};
}
template <class F>
inline VecPair each(F f, VecPair x, VecPair y) {
  return {{f(x.v[0], y.v[0]), f(x.v[1], y.v[1])}};
}

typedef std::int32_t LaneVec __attribute__((vector_size(kVectorFloats * 4)));

/// Zeros.
template <Order kOrder>
inline VecPair none(Two<kOrder>) {
  return {};
}
inline Vec none(Whole) { return Vec{}; }
inline Vec none(Part) { return Vec{}; }

/// Pair in line, from one that is apart.
inline VecPair put_together(VecPair x) {
  LaneVec low, high;
  for (int i = 0; i < kVectorFloats; ++i) {
    low[i] = i / 2 + i % 2 * kVectorFloats;
    high[i] = low[i] + kVectorFloats / 2;
  }
  return {{__builtin_shuffle(x.v[0], x.v[1], low), __builtin_shuffle(x.v[0], x.v[1], high)}};
}
/// Pair apart, from one that is in line.
inline VecPair take_apart(VecPair x) {
  LaneVec even, odd;
  for (int i = 0; i < kVectorFloats; ++i) {
    even[i] = 2 * i;
    odd[i] = 2 * i + 1;
  }
  return {{__builtin_shuffle(x.v[0], x.v[1], even), __builtin_shuffle(x.v[0], x.v[1], odd)}};
}

typedef std::uint32_t WordVecAt __attribute__((vector_size(kVectorFloats * 4), aligned(2), may_alias));

template <Order kOrder>
inline VecPair load(const float* x, Two<kOrder>) {
  return {{load_vec(x), load_vec(x + kVectorFloats)}};
}
inline VecPair load(const Bf16* x, Two<Order::apart>) {
  const WordVec words = *reinterpret_cast<const WordVecAt*>(x);
  return {{(Vec)(words << 16), (Vec)(words & 0xffff0000u)}};
}
inline VecPair load(const Bf16* x, Two<Order::in_line>) { return {{load_vec(x), load_vec(x + kVectorFloats)}}; }

template <Order kOrder>
inline VecPair keep(VecPair x, Two<kOrder>) {
  return x;
}

/// Rounded to nearest even as bf16, which then lies in the upper half of each word; what is below it is left over. Not
/// for NaN.
inline WordVec nearest(Vec x) {
  const WordVec word = (WordVec)x;
#if defined(__AVX512F__)  // the lowest bit that stays decides in a mask: three instructions
  const __mmask16 is_odd = _mm512_test_epi32_mask((__m512i)word, _mm512_set1_epi32(0x10000));
  return (WordVec)_mm512_mask_add_epi32((__m512i)(word + 0x7fffu), is_odd, (__m512i)word, _mm512_set1_epi32(0x8000));
#else
  return word + 0x7fffu + ((word >> 16) & 1u);
#endif
}
inline bool has_nan(VecPair x) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)x.v[0], (__m512)x.v[1], _CMP_UNORD_Q) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)x.v[0], (__m256)x.v[1], _CMP_UNORD_Q)) != 0;
#elif defined(__SSE2__)
  return _mm_movemask_ps(_mm_cmpunord_ps((__m128)x.v[0], (__m128)x.v[1])) != 0;
#else
  bool is_any = false;
  for (int i = 0; i < kVectorFloats; ++i) is_any |= x.v[0][i] != x.v[0][i] || x.v[1][i] != x.v[1][i];
  return is_any;
#endif
}
/// Pair as bf16, two in a word: the first vector's element below the second's. NaN stays NaN.
inline WordVec packed(VecPair x) {
  WordVec word[2] = {nearest(x.v[0]), nearest(x.v[1])};
  if (__builtin_expect(has_nan(x), 0))
    for (int i = 0; i < 2; ++i) word[i] = x.v[i] == x.v[i] ? word[i] : (WordVec)x.v[i] | 0x400000u;
#if defined(__AVX512F__)
  return (WordVec)_mm512_mask_blend_epi16(0xaaaaaaaau, (__m512i)(word[0] >> 16), (__m512i)word[1]);
#else
  return (word[0] >> 16) | (word[1] & 0xffff0000u);
#endif
}
/// A twin of bf16 as it lies in memory.
inline WordVec packed(VecPair x, Two<Order::apart>) { return packed(x); }
inline WordVec packed(VecPair x, Two<Order::in_line>) {
#if defined(__AVX512F__)
  typedef std::uint16_t Index __attribute__((vector_size(64)));
  Index at;
  for (int i = 0; i < kVectorFloats; ++i) {
    at[i] = static_cast<std::uint16_t>(2 * i);
    at[i + kVectorFloats] = static_cast<std::uint16_t>(2 * i + 1);
  }
  return (WordVec)__builtin_shuffle((Index)packed(x), at);
#else
  return packed(take_apart(x));
#endif
}

/// Pair as it would come back from memory of elements T.
template <class T>
inline VecPair as_stored(VecPair x) {
  if constexpr (sizeof(T) == sizeof(float)) return x;
  const WordVec word = packed(x);
  return {{(Vec)(word << 16), (Vec)(word & 0xffff0000u)}};
}
template <class T>
inline Vec as_stored(Vec x) {
  T stored[kVectorFloats];
  store_vec(stored, x);
  return load_vec(stored);
}

template <Order kOrder>
inline void store(float* out, VecPair x, Two<kOrder>) {
  store_vec(out, x.v[0]);
  store_vec(out + kVectorFloats, x.v[1]);
}
template <Order kOrder>
inline void store(Bf16* out, VecPair x, Two<kOrder> two) {
  *reinterpret_cast<WordVecAt*>(out) = packed(x, two);
}

/// out (n) := in; the whole twins of it taken apart where kOrder says so.
template <Order kOrder, class T>
inline void lay_out(float* out, const T* in, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kPairFloats <= n; i += kPairFloats) {
    const VecPair x = load(in + i, Two<Order::in_line>{});
    store(out + i, kOrder == Order::apart ? take_apart(x) : x, Two<kOrder>{});
  }
  for (; i < n; ++i) out[i] = to_float(in[i]);
}
/// Undoes it, in place.
inline void put_together(float* x, std::int64_t n) {
  constexpr Two<Order::in_line> kTwo;
  for (std::int64_t i = 0; i + kPairFloats <= n; i += kPairFloats) store(x + i, put_together(load(x + i, kTwo)), kTwo);
}

constexpr std::int64_t kLineBytes = 64;

/// Asks for x[0] and what follows it in a twin or less, for the first cache: what works on data that is there leaves
/// memory idle.
template <class T, class P>
inline void fetch(const T* x, P) {
  constexpr std::int64_t kElems = sizeof(P) == sizeof(Part) ? 1 : kPairFloats;
  for (std::int64_t i = 0; i < kElems; i += kLineBytes / static_cast<std::int64_t>(sizeof(T)))
    __builtin_prefetch(x + i);
}
/// Fetches what lies so far after `x` that it comes in time. A processor fetches ahead by itself, but not across pages
/// of 4 KiB, and what it has begun to compute holds fewer loads than memory can have under way.
template <std::uintptr_t kAheadBytes = 2048, class T, class P>
inline void fetch_ahead(const T* x, P part) {
  fetch(reinterpret_cast<const T*>(reinterpret_cast<std::uintptr_t>(x) + kAheadBytes),
        part);  // the buffer may end before: not x + a number
}

/// visit(i, Two, Whole or Part) over [begin, end).
template <Order kOrder, class Visit>
__attribute__((always_inline)) inline void for_each_pair(std::int64_t begin, std::int64_t end, Visit visit) {
  std::int64_t i = begin;
  for (; i + kPairFloats <= end; i += kPairFloats) visit(i, Two<kOrder>{});
  for_each_vec(i, end, visit);
}

}  // namespace zs::cpu::ZS_ISA
