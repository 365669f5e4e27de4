#include "comm/fold.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace zs {
namespace {

constexpr std::int64_t kBlockElems = 2048;  // the block of sums stays in the first-level cache

template <class Acc>
struct Sum {
  Acc operator()(Acc a, Acc b) const {
    if constexpr (std::is_integral_v<Acc>) {
      using U = std::make_unsigned_t<Acc>;
      return static_cast<Acc>(static_cast<U>(a) + static_cast<U>(b));
    } else {
      return a + b;
    }
  }
};

// A NaN wins in both, on whichever side it stands.
template <class Acc>
struct Max {
  Acc operator()(Acc a, Acc b) const { return b > a || b != b ? b : a; }
};
template <class Acc>
struct Min {
  Acc operator()(Acc a, Acc b) const { return b < a || b != b ? b : a; }
};

template <class Acc, class T>
void load(Acc* __restrict sums, const T* __restrict from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sums[i] = static_cast<Acc>(from[i]);
}

template <class Acc, class T>
void store(T* __restrict to, const Acc* __restrict sums, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(sums[i]);
}

template <class Acc, class T, class Op>
void combine(Acc* __restrict sums, const T* __restrict part, std::int64_t n, Op op) {
  for (std::int64_t i = 0; i < n; ++i) sums[i] = op(sums[i], static_cast<Acc>(part[i]));
}

/// The same as one after the other, with one pass over the sums.
template <class Acc, class T, class Op>
void combine_two(Acc* __restrict sums, const T* __restrict first, const T* __restrict second, std::int64_t n, Op op) {
  for (std::int64_t i = 0; i < n; ++i) sums[i] = op(op(sums[i], static_cast<Acc>(first[i])), static_cast<Acc>(second[i]));
}

template <class Part, class Out, class Acc, class Op>
void fold_blocks(const FoldArgs& args, Op op) {
  alignas(64) std::array<Acc, kBlockElems> sums;
  for (std::int64_t at = 0; at < args.elems; at += kBlockElems) {
    const std::int64_t n = std::min(kBlockElems, args.elems - at);
    std::size_t next = 0;
    if (args.start) {
      load(sums.data(), reinterpret_cast<const Out*>(args.start) + at, n);
    } else {
      load(sums.data(), reinterpret_cast<const Part*>(args.parts[next++]) + at, n);
    }
    for (; next + 1 < args.parts.size(); next += 2) {
      combine_two(sums.data(), reinterpret_cast<const Part*>(args.parts[next]) + at,
                  reinterpret_cast<const Part*>(args.parts[next + 1]) + at, n, op);
    }
    if (next < args.parts.size()) combine(sums.data(), reinterpret_cast<const Part*>(args.parts[next]) + at, n, op);
    store(reinterpret_cast<Out*>(args.out) + at, sums.data(), n);
  }
}

template <class Part, class Out, class Acc>
void fold_by_op(const FoldArgs& args) {
  switch (args.op) {
    case ReduceOp::sum: return fold_blocks<Part, Out, Acc>(args, Sum<Acc>{});
    case ReduceOp::max: return fold_blocks<Part, Out, Acc>(args, Max<Acc>{});
    case ReduceOp::min: return fold_blocks<Part, Out, Acc>(args, Min<Acc>{});
  }
}

}  // namespace

void fold(const FoldArgs& args) {
  ZS_CHECK(!args.parts.empty(), "a fold of no parts");
  const bool same = args.part_dtype == args.out_dtype;
  if (args.part_dtype == DType::bf16 && args.out_dtype == DType::f32) return fold_by_op<BFloat16, float, float>(args);
  if (args.part_dtype == DType::f32 && args.out_dtype == DType::bf16) return fold_by_op<float, BFloat16, float>(args);
  if (same && args.part_dtype == DType::f32) return fold_by_op<float, float, float>(args);
  if (same && args.part_dtype == DType::bf16) return fold_by_op<BFloat16, BFloat16, float>(args);
  if (same && args.part_dtype == DType::f64) return fold_by_op<double, double, double>(args);
  if (same && args.part_dtype == DType::i32) return fold_by_op<std::int32_t, std::int32_t, std::int32_t>(args);
  if (same && args.part_dtype == DType::i64) return fold_by_op<std::int64_t, std::int64_t, std::int64_t>(args);
  ZS_CHECK(false, "no fold of {} into {}", name_of(args.part_dtype), name_of(args.out_dtype));
}

void stream_bytes(void* to, const void* from, std::int64_t bytes) {
#if defined(__SSE2__)
  constexpr std::int64_t kLine = 64;
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  const std::int64_t head = std::min<std::int64_t>(bytes, static_cast<std::int64_t>(-reinterpret_cast<std::uintptr_t>(to) % kLine));
  copy_bytes(out, in, head);
  std::int64_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    for (std::int64_t i = at; i < at + kLine; i += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i)));
  }
  _mm_sfence();  // others may look as soon as a counter says so
  copy_bytes(out + at, in + at, bytes - at);
#else
  copy_bytes(to, from, bytes);
#endif
}

void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace zs
