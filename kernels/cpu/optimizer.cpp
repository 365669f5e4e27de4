#if defined(ZS_ISA)
#include "kernels/cpu/isa_families.h"
#include "kernels/cpu/lanes.h"

/// Updates by the rules of optimizers, and the sums that precede them.
namespace zs::cpu::ZS_ISA {
namespace {

/// Long sums are cut into blocks whose size follows from the length alone, so that the bits do not depend on the
/// threads.
constexpr std::int64_t kMaxBlocks = 512, kMinBlock = 16384;

inline std::int64_t block_elems(std::int64_t n) {
  return max_of(kMinBlock, round_up((n + kMaxBlocks - 1) / kMaxBlocks, 256));
}

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

/// Elements [begin, end), each or its square, in f64: element i belongs to lane i mod 32, lanes are folded last. A
/// square of two f32 is exact in f64, so fusing it with the addition changes nothing.
template <bool kSquare, class T>
double double_sum(const T* in, std::int64_t begin, std::int64_t end) {
  DoubleLanes<2 * kLanes> lanes;
  std::int64_t i = begin;
  for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
    for (int half = 0; half < 2 * kLanes; half += kPairFloats) fetch_ahead(in + i + half, Whole{});
    lanes.template add<kSquare>(in + i);
  }
  if (i < end) {
    T rest[2 * kLanes] = {};
    for (std::int64_t k = i; k < end; ++k) rest[k - i] = in[k];
    lanes.template add<kSquare>(rest);
  }
  return lanes.reduce();
}

/// The bits of the largest |element|, which as integers have the order of the numbers, and NaN above all.
template <class T>
std::int32_t magnitude_bits(const T* in, std::int64_t begin, std::int64_t end) {
  LaneVec lanes[2] = {};
  std::int64_t i = begin;
  for (; i + kPairFloats <= end; i += kPairFloats) {
    constexpr Two<kOwnOrder<T>> kTwo;
    fetch_ahead(in + i, kTwo);
    const VecPair x = load(in + i, kTwo);
    for (int half = 0; half < 2; ++half) {
      const LaneVec bits = (LaneVec)x.v[half] & 0x7fffffff;
      lanes[half] = bits > lanes[half] ? bits : lanes[half];
    }
  }
  std::int32_t largest = 0;
  const auto take = [&](std::int32_t bits) { largest = bits > largest ? bits : largest; };
  for (int k = 0; k < kPairFloats; ++k) take(lanes[k / kVectorFloats][k % kVectorFloats]);
  for (; i < end; ++i) take(__builtin_bit_cast(std::int32_t, to_float(in[i])) & 0x7fffffff);
  return largest;
}

/// Each square times `factor`, which is a power of two, rounded to nearest, half up. Unsigned: what does not fit,
/// because the exponent was not the largest, wraps.
template <class T>
std::uint64_t fixed_point_block(const T* in, std::int64_t begin, std::int64_t end, double factor) {
  constexpr std::int64_t kRun = 256;  // whole lines are asked for between runs, which keeps a run one vector loop
  std::uint64_t total = 0;
  for (std::int64_t run = begin; run < end; run += kRun) {
    const std::int64_t stop = min_of(end, run + kRun);
    for (std::int64_t i = run; i < stop; i += kPairFloats) fetch_ahead(in + i, Whole{});
    for (std::int64_t i = run; i < stop; ++i) {
      const double x = static_cast<double>(to_float(in[i]));
      const double scaled = x * x * factor;  // exact: 48 bits; what has a fraction stays so with the half added
      total += static_cast<std::uint64_t>(static_cast<std::int64_t>(scaled + 0.5));
    }
  }
  return total;
}

double sum(int threads, const float* in, std::int64_t n) {
  return sum_blocks<double>(threads, n,
                            [=](std::int64_t begin, std::int64_t end) { return double_sum<false>(in, begin, end); });
}

double squares(int threads, Data in, std::int64_t n) {
  double result = 0;
  with_type(in, [&](auto tag) {
    const auto* x = elements<const decltype(tag)>(in);
    result = sum_blocks<double>(threads, n,
                                [=](std::int64_t begin, std::int64_t end) { return double_sum<true>(x, begin, end); });
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

template <class T>
double power_block(const T* in, std::int64_t begin, std::int64_t end, double factor, double power) {
  double total = 0;
  for (std::int64_t i = begin; i < end; ++i) {
    const double x = __builtin_fabs(static_cast<double>(to_float(in[i]))) * factor;
    total += power == 1 ? x : __builtin_pow(x, power);
  }
  return total;
}

double power_sum(int threads, Data in, std::int64_t n, double factor, double power) {
  double result = 0;
  with_type(in, [&](auto tag) {
    const auto* x = elements<const decltype(tag)>(in);
    result = sum_blocks<double>(
        threads, n, [=](std::int64_t begin, std::int64_t end) { return power_block(x, begin, end, factor, power); });
  });
  return result;
}

/// master_of(i): the new master of element i, whose moments it changes.
template <class MasterOf>
void update_elements(int threads, const Update& args, std::int64_t n, const MasterOf& master_of) {
  parallel_ranges(split_elements(threads, n), [=](std::int64_t begin, std::int64_t end) {
    const MasterOf own = master_of;  // a copy, which no element can alias: constants stay in registers
    const Update a = args;
    if (a.copy == nullptr) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) a.master[i] = own(i);
      return;
    }
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      const float master = own(i);
      a.master[i] = master;
      a.copy[i] = from_float<Bf16>(master);
    }
  });
}

template <bool kHasM, class Options>
void update_by(int threads, const Update& a, const Options& options, std::int64_t n) {
  update_elements(threads, a, n, [=, a = a](std::int64_t i) {
    float none = 0;
    if constexpr (Options::kNeedsV)
      return updated<kHasM>(options, a.scalars, a.weight_decay, a.master[i], a.grad[i], a.m[i], a.v[i]);
    else if constexpr (kHasM)
      return updated<kHasM>(options, a.scalars, a.weight_decay, a.master[i], a.grad[i], a.m[i], none);
    else
      return updated<kHasM>(options, a.scalars, a.weight_decay, a.master[i], a.grad[i], none, none);
  });
}

void update(int threads, const Update& a, const UpdateRule& rule, std::int64_t n) {
  with_update_rule(rule, [&]<class Options>(const Options& options) {
    if constexpr (!Options::kNeedsM)
      if (a.m == nullptr) return update_by<false>(threads, a, options, n);
    update_by<true>(threads, a, options, n);
  });
}

}  // namespace

void fill_optimizer(Isa& isa) {
  isa.sum = sum;
  isa.squares = squares;
  isa.max_magnitude_bits = max_magnitude_bits;
  isa.fixed_point_squares = fixed_point_squares;
  isa.power_sum = power_sum;
  isa.update = update;
}

}  // namespace zs::cpu::ZS_ISA
#else
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/checks.h"
#include "kernels/cpu/host.h"
#include "kernels/families.h"

namespace zs::cpu {
namespace {

constexpr std::int32_t kNoExponent = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kNotFinite = std::numeric_limits<std::int32_t>::max();

/// floor(log2 |x|) from the bits of |x|.
std::int32_t exponent_of(std::int32_t magnitude) {
  if (magnitude == 0) return kNoExponent;
  if (magnitude >= 0x7f800000) return kNotFinite;
  if (magnitude >= 0x00800000) return (magnitude >> 23) - 127;
  return std::bit_width(static_cast<std::uint32_t>(magnitude)) - 150;
}

StepScalars& step_scalars(const Buffer& scalars) {
  checks::step_scalars(scalars);
  return *reinterpret_cast<StepScalars*>(scalars.as<float>());
}

double norm_of(const Buffer& squared_norm, const Buffer& exponent, int shift) {
  if (exponent.empty()) return std::sqrt(*checks::scalar<double>("squared_norm", squared_norm));
  const std::int32_t e = *checks::scalar<std::int32_t>("exponent", exponent);
  if (e == kNotFinite) return std::numeric_limits<double>::infinity();
  if (e == kNoExponent) return 0.0;
  return std::sqrt(
      std::ldexp(static_cast<double>(*checks::scalar<std::int64_t>("squared_norm", squared_norm)), 2 * e - shift));
}

void sum(ExecContext& ctx, Buffer out, Buffer in, float factor) {
  *checks::scalar<float>("out", out) =
      static_cast<float>(static_cast<double>(factor) * isa().sum(ctx.threads(), floats_of(in), in.elems));
}

void squared_norm_of(ExecContext& ctx, const Buffer& out, const Buffer& in) {
  *checks::scalar<double>("out", out) += isa().squares(ctx.threads(), data_of(in), in.elems);
}

void max_exponent_of(ExecContext& ctx, const Buffer& out, const Buffer& in) {
  std::int32_t& largest = *checks::scalar<std::int32_t>("out", out);
  largest = std::max(largest, exponent_of(isa().max_magnitude_bits(ctx.threads(), data_of(in), in.elems)));
}

void fixed_point_squares_of(ExecContext& ctx, const Buffer& out, const Buffer& in, const Buffer& exponent, int shift) {
  const std::int32_t e = *checks::scalar<std::int32_t>("exponent", exponent);
  checks::fixed_point_shift(shift);
  std::int64_t& total = *checks::scalar<std::int64_t>("out", out);
  if (e == kNoExponent || e == kNotFinite) return;
  const std::int64_t more =
      isa().fixed_point_squares(ctx.threads(), data_of(in), in.elems, std::ldexp(1.0, shift - 2 * e));
  total = static_cast<std::int64_t>(static_cast<std::uint64_t>(total) + static_cast<std::uint64_t>(more));  // wraps
}

void max_magnitude_of(ExecContext& ctx, const Buffer& out, const Buffer& in) {
  std::int32_t& largest = *checks::scalar<std::int32_t>("out", out);
  largest = std::max(largest, isa().max_magnitude_bits(ctx.threads(), data_of(in), in.elems));
}

void power_sum_of(ExecContext& ctx, const Buffer& out, const Buffer& in, const Buffer& largest, float power) {
  ZS_CHECK(!checks::is_max_norm(power), "a sum of powers of {}", power);
  double& total = *checks::scalar<double>("out", out);
  const auto most = std::bit_cast<float>(*checks::scalar<std::int32_t>("largest", largest));
  if (most == 0 || !std::isfinite(most)) return;
  total +=
      isa().power_sum(ctx.threads(), data_of(in), in.elems, 1 / static_cast<double>(most), static_cast<double>(power));
}

void norm_of_powers(ExecContext&, Buffer out, Buffer largest, float power) {
  double& total = *checks::scalar<double>("out", out);
  const auto most = static_cast<double>(std::bit_cast<float>(*checks::scalar<std::int32_t>("largest", largest)));
  const double norm = most == 0 || !std::isfinite(most) || checks::is_max_norm(power)
                          ? most
                          : most * std::pow(total, 1 / static_cast<double>(power));
  total = norm * norm;
}

void clip_gradient(ExecContext& ctx, Buffer grad, Buffer scalars) {
  isa().scale(ctx.threads(), data_of(grad), data_of(grad), grad.elems, step_scalars(scalars).clip_coefficient);
}

/// A kernel of one part for all of them, one after the other.
template <auto kKernel, class... More>
void of_each(ExecContext& ctx, Buffer out, const SumParts& in, More... more) {
  for (const Buffer& part : in) kKernel(ctx, out, part, more...);
}

void clip_coefficient(ExecContext&, Buffer scalars, Buffer squared_norm, Buffer exponent, int shift, float clip) {
  StepScalars& step = step_scalars(scalars);
  const double norm = norm_of(squared_norm, exponent, shift);
  step.grad_norm = static_cast<float>(norm);
  step.skip = std::isfinite(step.grad_norm) ? 0.0f : 1.0f;
  step.clip_coefficient = 1.0f;
  if (clip > 0 && step.skip == 0.0f)
    step.clip_coefficient = static_cast<float>(std::min(1.0, static_cast<double>(clip) / (norm + 1e-6)));
}

void correct_scalars(ExecContext&, Buffer scalars, Buffer first, Buffer before, const StepCorrection& by) {
  const StepScalars& of_norm = step_scalars(first);
  StepScalars& step = step_scalars(scalars);
  ZS_CHECK(checks::update_counts(before) == 1, "{} elements of f64 as one count of updates", before.elems);
  correct(step, of_norm, *reinterpret_cast<const UpdateCount*>(before.as<double>()), by);
}

void count_updates(ExecContext&, Buffer counts, Buffer scalars) {
  const StepScalars& step = step_scalars(scalars);
  auto* const all = reinterpret_cast<UpdateCount*>(counts.as<double>());
  for (std::int64_t i = 0; i < checks::update_counts(counts); ++i) count_update(all[i], step);
}

/// Ranges one after the other.
void update(ExecContext& ctx, const OneOrMany<UpdateRange>& ranges, const UpdateRule& rule) {
  const auto floats_or_none = [](const Buffer& buffer) { return buffer.empty() ? nullptr : floats_of(buffer); };
  for (const UpdateRange& range : ranges) {
    checks::update_range(range, rule);
    const Update args{.master = floats_of(range.master),
                      .m = floats_or_none(range.m),
                      .v = floats_or_none(range.v),
                      .copy = range.copy.empty() ? nullptr : static_cast<std::uint16_t*>(data_of(range.copy).address),
                      .grad = floats_of(range.grad),
                      .scalars = step_scalars(range.scalars),
                      .weight_decay = range.weight_decay};
    if (args.scalars.skip == 0.0f) isa().update(ctx.threads(), args, rule, range.master.elems);
  }
}

}  // namespace

void fill_optimizer(KernelTable& table) {
  table.sum = sum;
  table.squared_norm = of_each<squared_norm_of>;
  table.max_exponent = of_each<max_exponent_of>;
  table.fixed_point_squares = of_each<fixed_point_squares_of, Buffer, int>;
  table.max_magnitude = of_each<max_magnitude_of>;
  table.power_sum = of_each<power_sum_of, Buffer, float>;
  table.norm_of_powers = norm_of_powers;
  table.clip_coefficient = clip_coefficient;
  table.correct_scalars = correct_scalars;
  table.count_updates = count_updates;
  table.clip_gradient = clip_gradient;
  table.update = update;
}

}  // namespace zs::cpu
#endif
