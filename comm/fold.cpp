#include "comm/fold.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

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

/// How many parts one pass adds: each is a stream of memory of its own. With the first, those of eight ranks.
constexpr std::size_t kPartsAPass = 7;
template <class Part>
using Parts = std::array<const Part*, kPartsAPass>;

constexpr std::int64_t kLine = 64;
/// So much further on memory is asked for: a core reads more at a time than it asks for by itself.
constexpr std::int64_t kAhead = 16 * kLine;
/// Into the second-level cache: parts lie whole pages apart, so that a first-level cache of eight ways has too few for the same line of
/// all.
constexpr int kForReading = 0, kSecondLevel = 2;

/// to[i] := from[i] + parts[0][i] + ... + parts[sizeof...(kPart) - 1][i]; `to` may be what is read.
template <class Acc, class To, class From, class Part, class Op, std::size_t... kPart>
void add_parts(To* to, const From* from, Parts<Part> parts, std::int64_t n, Op op, std::index_sequence<kPart...>) {
  const auto add_between = [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      Acc sum = static_cast<Acc>(from[i]);
      ((sum = op(sum, static_cast<Acc>(parts[kPart][i]))), ...);
      to[i] = static_cast<To>(sum);
    }
  };
  constexpr std::int64_t kLineElems = kLine / static_cast<std::int64_t>(sizeof(Part));
  std::int64_t at = 0;
  for (; at + kLineElems <= n; at += kLineElems) {
    const auto ask = [=](const auto* part) {
      __builtin_prefetch(reinterpret_cast<const char*>(part + at) + kAhead, kForReading, kSecondLevel);
    };
    ask(from);
    (ask(parts[kPart]), ...);
    add_between(at, at + kLineElems);
  }
  add_between(at, n);
}

/// add_parts for each count of parts, by that count.
template <class Acc, class To, class From, class Part, class Op, std::size_t... kCount>
constexpr auto adders(std::index_sequence<kCount...>) {
  using Adder = void (*)(To*, const From*, Parts<Part>, std::int64_t, Op);
  return std::array<Adder, sizeof...(kCount)>{[](To* to, const From* from, Parts<Part> parts, std::int64_t n, Op op) {
    add_parts<Acc>(to, from, parts, n, op, std::make_index_sequence<kCount>());
  }...};
}

/// The elements from `at` on of one fold, its parts taken from the next one on.
template <class Part, class Acc, class Op>
struct Pass {
  const FoldArgs& args;
  Op op;
  std::size_t next = 0;
  std::int64_t at = 0;

  const Part* take() { return reinterpret_cast<const Part*>(args.parts[next++]) + at; }
  bool is_last() const { return args.parts.size() - next <= kPartsAPass; }

  template <class To, class From>
  void run(To* to, const From* from, std::int64_t n) {
    Parts<Part> parts{};
    std::size_t count = 0;
    while (count < kPartsAPass && next < args.parts.size()) parts[count++] = take();
    static constexpr auto kAdders = adders<Acc, To, From, Part, Op>(std::make_index_sequence<kPartsAPass + 1>());
    kAdders[count](to, from, parts, n, op);
  }
};

/// One pass where it can take all parts; else block by block, the sums in between in the first-level cache.
template <class Part, class Out, class Acc, class Op>
void fold_blocks(const FoldArgs& args, Op op) {
  alignas(64) std::array<Acc, kBlockElems> sums;
  const std::size_t after_the_first = args.parts.size() - (args.start ? 0 : 1);
  const bool is_single = after_the_first <= kPartsAPass;
  const std::int64_t block = is_single ? args.elems : kBlockElems;
  for (std::int64_t at = 0; at < args.elems; at += block) {
    const std::int64_t n = std::min(block, args.elems - at);
    Out* const out = reinterpret_cast<Out*>(args.out) + at;
    Pass<Part, Acc, Op> pass{args, op, 0, at};
    const auto begin = [&](const auto* from) { pass.is_last() ? pass.run(out, from, n) : pass.run(sums.data(), from, n); };
    args.start ? begin(reinterpret_cast<const Out*>(args.start) + at) : begin(pass.take());
    if (is_single) continue;
    while (!pass.is_last()) pass.run(sums.data(), sums.data(), n);
    pass.run(out, sums.data(), n);
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
  if (same && args.part_dtype == DType::u16) return fold_by_op<std::uint16_t, std::uint16_t, std::uint16_t>(args);
  if (same && args.part_dtype == DType::u8) return fold_by_op<std::uint8_t, std::uint8_t, std::uint8_t>(args);
  ZS_CHECK(false, "no fold of {} into {}", name_of(args.part_dtype), name_of(args.out_dtype));
}

void stream_bytes(void* to, const void* from, std::int64_t bytes) {
#if defined(__SSE2__)
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  const std::int64_t head = std::min<std::int64_t>(bytes, static_cast<std::int64_t>(-reinterpret_cast<std::uintptr_t>(to) % kLine));
  copy_bytes(out, in, head);
  std::int64_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    _mm_prefetch(in + at + kAhead, _MM_HINT_T0);
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
