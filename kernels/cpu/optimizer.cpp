#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/lanes.h"

/// AdamW, and the sums that precede it.
namespace zs::cpu::ZS_ISA {
namespace {

/// Long sums are cut into blocks whose size follows from the length alone, so that the bits do not depend on the threads.
constexpr std::int64_t kMaxBlocks = 512, kMinBlock = 16384;

inline std::int64_t block_elems(std::int64_t n) { return max_of(kMinBlock, round_up((n + kMaxBlocks - 1) / kMaxBlocks, 256)); }

/// block(begin, end) -> R for every block, added in order.
template <class R, class Block>
R sum_blocks(int threads, std::int64_t n, Block block) {
  const std::int64_t length = block_elems(n), blocks = (n + length - 1) / length;
  R parts[kMaxBlocks];
  parallel_ranges({threads, blocks, 1, 1}, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) parts[b] = block(b * length, min_of(n, (b + 1) * length));
  });
  R total{};
  for (std::int64_t b = 0; b < blocks; ++b) total += parts[b];
  return total;
}

/// Elements [begin, end), each or its square, in f64: element i belongs to lane i mod 32, lanes are folded last. A square of two f32 is
/// exact in f64, so fusing it with the addition changes nothing.
template <bool kSquare, class T>
double double_sum(const T* in, std::int64_t begin, std::int64_t end) {
  DoubleLanes<2 * kLanes> lanes;
  std::int64_t i = begin;
  for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
    for (int half = 0; half < 2 * kLanes; half += kTwinFloats) fetch_ahead(in + i + half, Whole{});
    lanes.template add<kSquare>(in + i);
  }
  if (i < end) {
    T rest[2 * kLanes] = {};
    for (std::int64_t k = i; k < end; ++k) rest[k - i] = in[k];
    lanes.template add<kSquare>(rest);
  }
  return lanes.fold();
}

/// The bits of the largest |element|, which as integers have the order of the numbers, and NaN above all.
template <class T>
std::int32_t magnitude_bits(const T* in, std::int64_t begin, std::int64_t end) {
  LaneVec lanes[2] = {};
  std::int64_t i = begin;
  for (; i + kTwinFloats <= end; i += kTwinFloats) {
    constexpr Two<kOwnOrder<T>> kTwo;
    fetch_ahead(in + i, kTwo);
    const Twin x = load(in + i, kTwo);
    for (int half = 0; half < 2; ++half) {
      const LaneVec bits = (LaneVec)x.v[half] & 0x7fffffff;
      lanes[half] = bits > lanes[half] ? bits : lanes[half];
    }
  }
  std::int32_t largest = 0;
  const auto take = [&](std::int32_t bits) { largest = bits > largest ? bits : largest; };
  for (int k = 0; k < kTwinFloats; ++k) take(lanes[k / kVectorFloats][k % kVectorFloats]);
  for (; i < end; ++i) take(__builtin_bit_cast(std::int32_t, to_float(in[i])) & 0x7fffffff);
  return largest;
}

/// Each square times `factor`, which is a power of two, rounded to nearest, half up. Unsigned: what does not fit, because the exponent was
/// not the largest, wraps.
template <class T>
std::uint64_t fixed_point_block(const T* in, std::int64_t begin, std::int64_t end, double factor) {
  constexpr std::int64_t kRun = 256;  // whole lines are asked for between runs, which keeps a run one vector loop
  std::uint64_t total = 0;
  for (std::int64_t run = begin; run < end; run += kRun) {
    const std::int64_t stop = min_of(end, run + kRun);
    for (std::int64_t i = run; i < stop; i += kTwinFloats) fetch_ahead(in + i, Whole{});
    for (std::int64_t i = run; i < stop; ++i) {
      const double x = static_cast<double>(to_float(in[i]));
      const double scaled = x * x * factor;  // exact: 48 bits; what has a fraction stays so with the half added
      total += static_cast<std::uint64_t>(static_cast<std::int64_t>(scaled + 0.5));
    }
  }
  return total;
}

}  // namespace

double sum(int threads, const float* in, std::int64_t n) {
  return sum_blocks<double>(threads, n, [=](std::int64_t begin, std::int64_t end) { return double_sum<false>(in, begin, end); });
}

double squares(int threads, Data in, std::int64_t n) {
  double result = 0;
  with_type(in, [&](auto tag) {
    const auto* x = elements<const decltype(tag)>(in);
    result = sum_blocks<double>(threads, n, [=](std::int64_t begin, std::int64_t end) { return double_sum<true>(x, begin, end); });
  });
  return result;
}

std::int32_t max_magnitude_bits(int threads, Data in, std::int64_t n) {
  const std::int64_t length = block_elems(n), blocks = (n + length - 1) / length;
  std::int32_t parts[kMaxBlocks];
  with_type(in, [&](auto tag) {
    const auto* x = elements<const decltype(tag)>(in);
    parallel_ranges({threads, blocks, 1, 1}, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) parts[b] = magnitude_bits(x, b * length, min_of(n, (b + 1) * length));
    });
  });
  std::int32_t largest = 0;
  for (std::int64_t b = 0; b < blocks; ++b) largest = parts[b] > largest ? parts[b] : largest;
  return largest;
}

std::int64_t fixed_point_squares(int threads, Data in, std::int64_t n, double factor) {
  std::int64_t result = 0;
  with_type(in, [&](auto tag) {
    const auto* x = elements<const decltype(tag)>(in);
    result = static_cast<std::int64_t>(sum_blocks<std::uint64_t>(
        threads, n, [=](std::int64_t begin, std::int64_t end) { return fixed_point_block(x, begin, end, factor); }));
  });
  return result;
}

namespace {

template <bool kCopies>
void adamw_pass(int threads, const AdamW& args, std::int64_t n) {
  const AdamW a = args;
  const float clip = a.scalars.clip_coefficient, lr = a.scalars.lr;
  const float correction1 = a.scalars.bias_correction1, correction2 = a.scalars.bias_correction2;
  const float beta1 = a.options.beta1, beta2 = a.options.beta2, eps = a.options.eps, weight_decay = a.options.weight_decay;
  parallel_ranges(split_elements(threads, n), [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      const float g = a.grad[i] * clip;
      const float m = beta1 * a.m[i] + (1.0f - beta1) * g;
      const float v = beta2 * a.v[i] + (1.0f - beta2) * g * g;
      a.m[i] = m;
      a.v[i] = v;
      const float before = a.master[i];
      const float master = before - lr * (m / correction1 / (__builtin_sqrtf(v / correction2) + eps) + weight_decay * before);
      a.master[i] = master;
      if constexpr (kCopies) a.copy[i] = from_float<Bf16>(master);
    }
  });
}

}  // namespace

void adamw(int threads, const AdamW& args, std::int64_t n) {
  if (args.copy != nullptr) {
    adamw_pass<true>(threads, args, n);
  } else {
    adamw_pass<false>(threads, args, n);
  }
}

}  // namespace zs::cpu::ZS_ISA
