#pragma once

#include "kernels/cpu/vec_pair.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/// Stores that pass the caches by. An ordinary store reads the line that it writes; for results too large to be found
/// in a cache by whoever reads them next, that is a third of all traffic of a copy.
namespace zs::cpu::ZS_ISA {

/// Bytes that the nearest cache which is a core's own holds, about: results up to it are stored as usual.
constexpr std::int64_t kStreamedFrom = std::int64_t{1} << 20;

inline bool begins_line(Data data) { return reinterpret_cast<std::uintptr_t>(data.address) % kLineBytes == 0; }

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
inline void stream_words(Bf16* out, WordVec x) { stream_vec(reinterpret_cast<float*>(out), (Vec)x); }
/// Fence before other threads are told that the results are there.
inline void end_streaming(bool is_streamed) {
  if (is_streamed) _mm_sfence();
}
#else
inline void stream_vec(float* out, Vec x) { store_vec(out, x); }
inline void stream_words(Bf16* out, WordVec x) { *reinterpret_cast<WordVecAt*>(out) = x; }
inline void end_streaming(bool) {}
#endif
template <Order kOrder>
inline void stream(float* out, VecPair x, Two<kOrder>) {
  stream_vec(out, x.v[0]);
  stream_vec(out + kVectorFloats, x.v[1]);
}
template <Order kOrder>
inline void stream(Bf16* out, VecPair x, Two<kOrder> two) {
  stream_words(out, packed(x, two));
}

/// True if `out` is large and written without having been read.
template <class T>
inline bool streams(Data out, std::int64_t n, Data a, Data b) {
  return n * static_cast<std::int64_t>(sizeof(T)) > kStreamedFrom && out.address != a.address &&
         out.address != b.address;
}

/// y[i] := element i of value(i, part), which gives elements i .. as a Vec or a VecPair, for i in [begin, end). What is
/// streamed is whole lines: a line that is streamed in two parts, with other stores between them, reaches memory as
/// two. A thread that has streamed calls end_streaming last.
template <Order kOrder, class T, class Value>
__attribute__((always_inline)) inline void store_range(T* y, std::int64_t begin, std::int64_t end, bool is_streamed,
                                                       Value value) {
  const auto store_one = [=](std::int64_t i, auto part) { store(y + i, value(i, part), part); };
  if (!is_streamed) return for_each_pair<kOrder>(begin, end, store_one);
  constexpr std::int64_t kLineElems = kLineBytes / static_cast<std::int64_t>(sizeof(T));
  const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(y + begin) % kLineBytes);
  if (past % static_cast<std::int64_t>(sizeof(T)) != 0) return for_each_pair<kOrder>(begin, end, store_one);
  std::int64_t i = past == 0 ? begin : min_of(end, begin + (kLineBytes - past) / static_cast<std::int64_t>(sizeof(T)));
  for_each_vec(begin, i, store_one);
  const std::int64_t whole = i + (end - i) / kLineElems * kLineElems;
  for (; i + kPairFloats <= whole; i += kPairFloats) stream(y + i, value(i, Two<kOrder>{}), Two<kOrder>{});
  if constexpr (sizeof(Vec) == kLineBytes && sizeof(T) == sizeof(float))
    for (; i < whole; i += kVectorFloats) stream_vec(y + i, value(i, Whole{}));
  for_each_pair<kOrder>(i, end, store_one);
}

}  // namespace zs::cpu::ZS_ISA
