#pragma once

#include "kernels/cpu/vec.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/// Stores that pass the caches by. An ordinary store reads the line that it writes; for results too large to be found in a cache
/// by whoever reads them next, that is a third of all traffic of a copy.
namespace zs::cpu::ZS_ISA {

/// As many bytes as the nearest cache that is a core's own holds, about: results up to it are stored as usual.
constexpr std::int64_t kStreamedFrom = std::int64_t{1} << 20;

#if defined(__SSE2__)
/// `out` is aligned to the vector.
inline void stream_vec(float* out, Vec x) {
#if defined(__AVX512F__)
  _mm512_stream_ps(out, (__m512)x);
#elif defined(__AVX2__)
  _mm256_stream_ps(out, (__m256)x);
#else
  _mm_stream_ps(out, (__m128)x);
#endif
}
inline void stream_vec(Bf16* out, Vec x) {
  const Bf16Vec half = rounded(x);
#if defined(__AVX512F__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(out), (__m256i)half);
#elif defined(__AVX2__)
  _mm_stream_si128(reinterpret_cast<__m128i*>(out), (__m128i)half);
#else
  _mm_stream_si64(reinterpret_cast<long long*>(out), (long long)half);
#endif
}
/// Before other threads are told that the results are there.
inline void end_streaming(bool is_streamed) {
  if (is_streamed) _mm_sfence();
}
#else
template <class T>
inline void stream_vec(T* out, Vec x) {
  store_vec(out, x);
}
inline void end_streaming(bool) {}
#endif

/// Whether `out` is large and written without having been read.
template <class T>
inline bool streams(Data out, std::int64_t n, Data a, Data b) {
  return n * static_cast<std::int64_t>(sizeof(T)) > kStreamedFrom && out.address != a.address && out.address != b.address;
}

/// The same for rows that are written one at a time: a line that two rows share would be streamed in two halves, which is slow.
template <class T>
inline bool streams_rows(Data out, Rows rows, Data a, Data b) {
  return rows.width * static_cast<std::int64_t>(sizeof(T)) % 64 == 0 && streams<T>(out, rows.count * rows.width, a, b);
}

/// y[i] := element i of value(i, part), which gives elements i .. as a Vec, for i in [begin, end). A thread that has streamed calls
/// end_streaming last.
template <class T, class Value>
inline void store_range(T* y, std::int64_t begin, std::int64_t end, bool is_streamed, Value value) {
  const auto store_one = [&](std::int64_t i, auto part) { store(y + i, value(i, part), part); };
  if (!is_streamed) return for_each_vec(begin, end, store_one);
  constexpr std::uintptr_t kUnit = kVectorFloats * sizeof(T);
  const std::uintptr_t past = reinterpret_cast<std::uintptr_t>(y + begin) % kUnit;
  if (past % sizeof(T) != 0) return for_each_vec(begin, end, store_one);
  std::int64_t i = past == 0 ? begin : min_of(end, begin + static_cast<std::int64_t>((kUnit - past) / sizeof(T)));
  for_each_vec(begin, i, store_one);
  for (; i + kVectorFloats <= end; i += kVectorFloats) stream_vec(y + i, value(i, Whole{}));
  for_each_vec(i, end, store_one);
}

}  // namespace zs::cpu::ZS_ISA
