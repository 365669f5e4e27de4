#include "comm/ordered_reduce_loops.h"

#include <type_traits>
#include <utility>

namespace zs::ordered_reduce_loops::ZS_ISA {
namespace {

/// The loops' own bf16, so that its conversions are compiled here.
struct Bf16 {
  std::uint16_t bits;
};

template <class Acc, class T>
inline Acc widened(T x) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(x.bits) << 16);
  } else {
    return static_cast<Acc>(x);
  }
}

/// The word whose upper half is the bf16 nearest to x, even where there are two, as BFloat16 has it; NaN stays NaN.
inline std::uint32_t rounded(float x) {
  const auto word = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t nearest = word + 0x7fffu + ((word >> 16) & 1u), quiet = word | 0x400000u;
  return x == x ? nearest : quiet;
}

template <class T, class Acc>
inline T narrowed(Acc x) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return {static_cast<std::uint16_t>(rounded(x) >> 16)};
  } else {
    return static_cast<T>(x);
  }
}

#if defined(__AVX512F__)
constexpr std::int64_t kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr std::int64_t kVectorBytes = 32;
#else
constexpr std::int64_t kVectorBytes = 16;
#endif
typedef std::uint32_t Words __attribute__((vector_size(kVectorBytes)));
typedef float Floats __attribute__((vector_size(kVectorBytes)));
typedef std::uint32_t WordsAt __attribute__((vector_size(kVectorBytes), aligned(2), may_alias));  // in memory

inline Words rounded(Floats x) {
  const Words word = (Words)x, nearest = word + 0x7fffu + ((word >> 16) & 1u), quiet = word | 0x400000u;
  return x == x ? nearest : quiet;
}

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
  Floats operator()(Floats a, Floats b) const { return a + b; }
};

// A NaN wins in both, on whichever side it stands.
template <class Acc>
struct Max {
  Acc operator()(Acc a, Acc b) const { return b > a || b != b ? b : a; }
  Floats operator()(Floats a, Floats b) const { return ((b > a) | (b != b)) ? b : a; }
};
template <class Acc>
struct Min {
  Acc operator()(Acc a, Acc b) const { return b < a || b != b ? b : a; }
  Floats operator()(Floats a, Floats b) const { return ((b < a) | (b != b)) ? b : a; }
};

constexpr std::int64_t kBlockElems = 2048;  // the block of sums stays in the first-level cache

/// Number of parts that one pass adds: each is a stream of memory of its own. With the first, those of eight ranks. One
/// where no gradients are added: what is not timed is compiled in a third of the time.
constexpr std::size_t kMostPartsAPass = 7;
template <class Acc, class Op>
constexpr std::size_t kPartsAPass = std::is_same_v<Acc, float>&& std::is_same_v<Op, Sum<float>> ? kMostPartsAPass : 1;

template <class Part>
struct Parts {
  const Part* at[kMostPartsAPass];
};

constexpr std::int64_t kLine = 64;
/// Distance at which memory is asked for ahead: a core reads more at a time than it asks for by itself.
constexpr std::int64_t kAhead = 16 * kLine;
/// Into the second-level cache: parts lie whole pages apart, so that a first-level cache of eight ways has too few for
/// the same line of all.
constexpr int kForReading = 0, kSecondLevel = 2;

/// to[i] := from[i] + parts[0][i] + ... + parts[sizeof...(kPart) - 1][i] for i in [begin, end); `to` may be what is
/// read.
template <class Acc, class To, class From, class Part, class Op, std::size_t... kPart>
inline void add_between(To* to, const From* from, const Parts<Part>& parts, std::int64_t begin, std::int64_t end,
                        [[maybe_unused]] Op op, std::index_sequence<kPart...>) {
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) {
    Acc sum = widened<Acc>(from[i]);
    ((sum = op(sum, widened<Acc>(parts.at[kPart][i]))), ...);
    to[i] = narrowed<To>(sum);
  }
}

/// Two neighbours in bf16 lie in one word: taken apart and put together there, they need none of the shuffles that
/// would cost more than the sums do.
inline Words words_at(const Bf16* x) { return *reinterpret_cast<const WordsAt*>(x); }
inline Floats lower(Words words) { return (Floats)(words << 16); }
inline Floats upper(Words words) { return (Floats)(words & 0xffff0000u); }

template <class Acc, class Op, std::size_t... kPart>
inline void add_between(Bf16* to, const Bf16* from, const Parts<Bf16>& parts, std::int64_t begin, std::int64_t end,
                        [[maybe_unused]] Op op, std::index_sequence<kPart...>) {
  constexpr std::int64_t kStep = kVectorBytes / 2;
  std::int64_t i = begin;
  for (; i + kStep <= end; i += kStep) {
    Words words = words_at(from + i);
    Floats low = lower(words), high = upper(words);
    ((words = words_at(parts.at[kPart] + i), low = op(low, lower(words)), high = op(high, upper(words))), ...);
    *reinterpret_cast<WordsAt*>(to + i) = (rounded(low) >> 16) | (rounded(high) & 0xffff0000u);
  }
  for (; i < end; ++i) {
    Acc sum = widened<Acc>(from[i]);
    ((sum = op(sum, widened<Acc>(parts.at[kPart][i]))), ...);
    to[i] = narrowed<Bf16>(sum);
  }
}

/// All n elements.
template <class Acc, class To, class From, class Part, class Op, std::size_t... kPart>
inline void add_parts(To* to, const From* from, const Parts<Part>& parts, std::int64_t n, Op op,
                      std::index_sequence<kPart...> each) {
  constexpr std::int64_t kLineElems = kLine / static_cast<std::int64_t>(sizeof(Part));
  std::int64_t at = 0;
  for (; at + kLineElems <= n; at += kLineElems) {
    const auto ask = [=](const auto* part) {
      __builtin_prefetch(reinterpret_cast<const char*>(part + at) + kAhead, kForReading, kSecondLevel);
    };
    ask(from);
    (ask(parts.at[kPart]), ...);
    add_between<Acc>(to, from, parts, at, at + kLineElems, op, each);
  }
  add_between<Acc>(to, from, parts, at, n, op, each);
}

/// add_parts by the count of parts, which is at most kCount.
template <std::size_t kCount, class Acc, class To, class From, class Part, class Op>
inline void add_counted(To* to, const From* from, const Parts<Part>& parts, std::size_t count, std::int64_t n, Op op) {
  if (count == kCount) return add_parts<Acc>(to, from, parts, n, op, std::make_index_sequence<kCount>());
  if constexpr (kCount > 0) add_counted<kCount - 1, Acc>(to, from, parts, count, n, op);
}

/// The elements from `at` on of one reduction, its parts taken from the next one on.
template <class Part, class Acc, class Op>
struct Pass {
  const OrderedReduction& args;
  Op op;
  std::size_t next;
  std::int64_t at;

  const Part* take() { return reinterpret_cast<const Part*>(args.parts[next++]) + at; }
  bool is_last() const { return args.count - next <= kPartsAPass<Acc, Op>; }

  template <class To, class From>
  void run(To* to, const From* from, std::int64_t n) {
    Parts<Part> parts{};
    std::size_t count = 0;
    while (count < kPartsAPass<Acc, Op> && next < args.count) parts.at[count++] = take();
    add_counted<kPartsAPass<Acc, Op>, Acc>(to, from, parts, count, n, op);
  }
};

/// One pass where it can take all parts; else block by block, the sums in between in the first-level cache.
template <class Part, class Out, class Acc, class Op>
void reduce_blocks(const OrderedReduction& args, Op op) {
  alignas(64) Acc sums[kBlockElems];
  const std::size_t after_the_first = args.count - (args.start ? 0 : 1);
  const bool is_single = after_the_first <= kPartsAPass<Acc, Op>;
  const std::int64_t block = is_single ? args.elems : kBlockElems;
  for (std::int64_t at = 0; at < args.elems; at += block) {
    const std::int64_t left = args.elems - at, n = block < left ? block : left;
    Out* const out = reinterpret_cast<Out*>(args.out) + at;
    Pass<Part, Acc, Op> pass{args, op, 0, at};
    const auto begin = [&](const auto* from) { pass.is_last() ? pass.run(out, from, n) : pass.run(sums, from, n); };
    args.start ? begin(reinterpret_cast<const Out*>(args.start) + at) : begin(pass.take());
    if (is_single) continue;
    while (!pass.is_last()) pass.run(sums, sums, n);
    pass.run(out, sums, n);
  }
}

template <class Part, class Out, class Acc>
bool reduce_by_op(const OrderedReduction& args) {
  switch (args.op) {
    case ReduceOp::sum: reduce_blocks<Part, Out, Acc>(args, Sum<Acc>{}); break;
    case ReduceOp::max: reduce_blocks<Part, Out, Acc>(args, Max<Acc>{}); break;
    case ReduceOp::min: reduce_blocks<Part, Out, Acc>(args, Min<Acc>{}); break;
  }
  return true;
}

bool run(const OrderedReduction& args) {
  if (args.part_dtype == DType::bf16 && args.out_dtype == DType::f32) return reduce_by_op<Bf16, float, float>(args);
  if (args.part_dtype == DType::f32 && args.out_dtype == DType::bf16) return reduce_by_op<float, Bf16, float>(args);
  if (args.part_dtype != args.out_dtype) return false;
  switch (args.part_dtype) {
    case DType::f32: return reduce_by_op<float, float, float>(args);
    case DType::bf16: return reduce_by_op<Bf16, Bf16, float>(args);
    case DType::f64: return reduce_by_op<double, double, double>(args);
    case DType::i32: return reduce_by_op<std::int32_t, std::int32_t, std::int32_t>(args);
    case DType::i64: return reduce_by_op<std::int64_t, std::int64_t, std::int64_t>(args);
    case DType::u16: return reduce_by_op<std::uint16_t, std::uint16_t, std::uint16_t>(args);
    case DType::u8: return reduce_by_op<std::uint8_t, std::uint8_t, std::uint8_t>(args);
  }
  return false;
}

}  // namespace

#define ZS_STRING_OF(name) #name
#define ZS_STRING(name) ZS_STRING_OF(name)
const Isa kIsa = {.name = ZS_STRING(ZS_ISA), .run = run};

}  // namespace zs::ordered_reduce_loops::ZS_ISA
