#include "kernels/cuda/device.h"

/// Updates by the rules of optimizers, and the sums that precede them.
namespace zs::cuda {
namespace {

constexpr std::int32_t kNoExponent = INT32_MIN, kNotFinite = INT32_MAX;

/// floor(log2 |x|) from the bits of |x|.
__device__ std::int32_t exponent_of(std::int32_t magnitude) {
  if (magnitude == 0) return kNoExponent;
  if (magnitude >= 0x7f800000) return kNotFinite;
  if (magnitude >= 0x00800000) return (magnitude >> 23) - 127;
  std::int32_t exponent = -150;
  for (; magnitude != 0; magnitude >>= 1) ++exponent;
  return exponent;
}

/// The last range that begins at this block or before it.
template <class Args>
__device__ int range_of_block(const Args& args) {
  const int block = static_cast<int>(blockIdx.x);
  int at = 0, behind = args.count;
  while (behind - at > 1) {
    const int middle = (at + behind) / 2;
    if (args.ranges[middle].first_block <= block)
      at = middle;
    else
      behind = middle;
  }
  return at;
}

/// visit(x) for all elements of this thread's part of the block's chunk of a range, in the same order whether packs are
/// read or not.
template <class T, class Visit>
__device__ void for_each_of_chunk(const ReduceArgs& args, const ReduceRange& range, const Visit& visit) {
  constexpr int kElems = 16 / sizeof(T);
  const std::int64_t first = (static_cast<int>(blockIdx.x) - range.first_block) * args.chunk,
                     last = first + args.chunk < range.elems ? first + args.chunk : range.elems;
  for (std::int64_t begin = first + threadIdx.x * kElems; begin < last; begin += kThreads * kElems) {
    float x[kElems];
    const int count = load_some<T>(range.in, begin, last, range.is_aligned, x);
    for (int i = 0; i < kElems; ++i)
      if (i < count) visit(x[i]);
  }
}

/// add: R with one more element; combine: of two.
template <class R, class Add, class Combine>
__device__ void reduce_block(const ReduceArgs& args, const Add& add, const Combine& combine) {
  const ReduceRange& range = args.ranges[range_of_block(args)];
  R mine = 0;
  const auto visit = [&](float x) { mine = add(mine, x); };
  if (range.is_bf16)
    for_each_of_chunk<Bf16>(args, range, visit);
  else
    for_each_of_chunk<float>(args, range, visit);
  const R all = block_reduce(mine, combine);
  if (threadIdx.x == 0) static_cast<R*>(args.parts)[blockIdx.x] = all;
}

template <class R, class Combine>
__device__ R sum_parts(const FinishArgs& args, const Combine& combine) {
  const R* const parts = static_cast<const R*>(args.parts);
  R mine = 0;
  for (int i = threadIdx.x; i < args.count; i += kThreads) mine = combine(mine, parts[i]);
  return block_reduce(mine, combine);
}

__device__ double plus(double a, double b) { return a + b; }
__device__ std::int64_t larger(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
__device__ std::uint64_t wrapping_plus(std::uint64_t a, std::uint64_t b) { return a + b; }

__device__ double norm_of(const ClipArgs& args) {
  if (args.exponent == nullptr) return sqrt(*static_cast<const double*>(args.squared_norm));
  const std::int32_t e = *args.exponent;
  if (e == kNotFinite) return INFINITY;
  if (e == kNoExponent) return 0.0;
  return sqrt(ldexp(static_cast<double>(*static_cast<const std::int64_t*>(args.squared_norm)), 2 * e - args.shift));
}

/// A pack for each thread. Moments that a range has not are zeros: v where it is not needed, and m where the range has
/// none then.
template <class Options>
__device__ void update(const UpdateArgs& args, const Options& options) {
  const UpdateRangeArgs& range = args.ranges[range_of_block(args)];
  const StepScalars s = *range.scalars;
  const std::int64_t at = ((blockIdx.x - range.first_block) * static_cast<std::int64_t>(kThreads) + threadIdx.x) *
                          kUpdateElems,
                     elems = range.elems;
  if (s.skip != 0.0f || at >= elems) return;
  const bool has_m = Options::kNeedsM || range.m != nullptr;
  with_packs<float>(range.is_aligned && at + kUpdateElems <= elems, [&](auto packs) {
    float master[kUpdateElems], grad[kUpdateElems], m[kUpdateElems] = {}, v[kUpdateElems] = {};
    packs.load(range.master, at, elems, master);
    packs.load(range.grad, at, elems, grad);
    if (has_m) packs.load(range.m, at, elems, m);
    if (Options::kNeedsV) packs.load(range.v, at, elems, v);
    for (int i = 0; i < kUpdateElems; ++i)
      master[i] = has_m ? updated<true>(options, s, range.weight_decay, master[i], grad[i], m[i], v[i])
                        : updated<false>(options, s, range.weight_decay, master[i], grad[i], m[i], v[i]);
    packs.store(range.master, at, elems, master);
    if (has_m) packs.store(range.m, at, elems, m);
    if (Options::kNeedsV) packs.store(range.v, at, elems, v);
    if (range.copy != nullptr) packs.template store<Bf16>(range.copy, at, elems, master);
  });
}

template <class T>
__device__ void clip_gradient(const ClipGradientArgs& args) {
  const std::int64_t i = global_thread();
  if (i >= args.elems) return;
  T& x = static_cast<T*>(args.grad)[i];
  x = from_float<T>(to_float(x) * args.scalars->clip_coefficient);
}

}  // namespace

extern "C" __global__ void zs_reduce(const ReduceArgs args) {
  switch (args.reduction) {
    case Reduction::sum:
      return reduce_block<double>(
          args, [](double sum, float x) { return sum + x; }, plus);
    case Reduction::squares:
      return reduce_block<double>(
          args, [](double sum, float x) { return sum + static_cast<double>(x) * x; }, plus);
    case Reduction::powers: {
      const float largest = float_of(static_cast<std::uint32_t>(*args.exponent));
      const bool is_number = largest > 0.0f && isfinite(largest);
      const double factor = is_number ? 1.0 / largest : 0.0, power = args.power;
      return reduce_block<double>(
          args,
          [=](double sum, float x) {
            if (!is_number) return sum;
            const double part = fabs(static_cast<double>(x)) * factor;
            return sum + (power == 1.0 ? part : pow(part, power));
          },
          plus);
    }
    case Reduction::max_magnitude:
    case Reduction::magnitude_bits:
      return reduce_block<std::int64_t>(
          args, [](std::int64_t most, float x) { return larger(most, bits_of(x) & 0x7fffffffu); }, larger);
    case Reduction::fixed_point: break;
  }
  const std::int32_t e = *args.exponent;
  const bool is_number = e != kNoExponent && e != kNotFinite;
  const double factor = is_number ? ldexp(1.0, args.shift - 2 * e) : 0.0;
  reduce_block<std::uint64_t>(
      args,
      [=](std::uint64_t total, float x) {
        if (!is_number) return total;
        const double scaled = static_cast<double>(x) * x * factor;  // exact: 48 bits times a power of two
        const auto whole = static_cast<std::int64_t>(scaled);
        return total + static_cast<std::uint64_t>(whole) + (scaled - static_cast<double>(whole) >= 0.5 ? 1 : 0);
      },
      wrapping_plus);
}

/// One block.
extern "C" __global__ void zs_finish_reduction(const FinishArgs args) {
  const bool is_first = threadIdx.x == 0;
  if (args.reduction == Reduction::max_magnitude) {
    const std::int32_t exponent = exponent_of(static_cast<std::int32_t>(sum_parts<std::int64_t>(args, larger)));
    auto* const out = static_cast<std::int32_t*>(args.out);
    if (is_first && exponent > *out) *out = exponent;
  } else if (args.reduction == Reduction::magnitude_bits) {
    const auto largest = static_cast<std::int32_t>(sum_parts<std::int64_t>(args, larger));
    auto* const out = static_cast<std::int32_t*>(args.out);
    if (is_first && largest > *out) *out = largest;
  } else if (args.reduction == Reduction::fixed_point) {
    const std::uint64_t total = sum_parts<std::uint64_t>(args, wrapping_plus);
    if (is_first) *static_cast<std::uint64_t*>(args.out) += total;
  } else {
    const double total = sum_parts<double>(args, plus);
    if (is_first && args.reduction == Reduction::sum)
      *static_cast<float*>(args.out) = static_cast<float>(static_cast<double>(args.factor) * total);
    else if (is_first)
      *static_cast<double*>(args.out) += total;
  }
}

/// One thread.
extern "C" __global__ void zs_clip_coefficient(const ClipArgs args) {
  StepScalars& s = *args.scalars;
  const double norm = norm_of(args);
  s.grad_norm = static_cast<float>(norm);
  s.skip = isfinite(s.grad_norm) ? 0.0f : 1.0f;
  s.clip_coefficient = 1.0f;
  if (args.clip > 0 && s.skip == 0.0f)
    s.clip_coefficient = static_cast<float>(fmin(1.0, static_cast<double>(args.clip) / (norm + 1e-6)));
}

/// One thread.
extern "C" __global__ void zs_correct_scalars(const CorrectArgs args) {
  correct(*args.scalars, *args.first, *args.before, args.by);
}

extern "C" __global__ void zs_count_updates(const CountArgs args) {
  const std::int64_t i = global_thread();
  if (i < args.elems) count_update(args.counts[i], *args.scalars);
}

extern "C" __global__ void zs_update(const UpdateArgs args) {
  with_update_rule(args.rule, [&](const auto& options) { update(args, options); });
}

/// One thread.
extern "C" __global__ void zs_norm_of_powers(const NormOfPowersArgs args) {
  const double largest = float_of(static_cast<std::uint32_t>(*args.largest));
  const bool is_largest = largest == 0.0 || !isfinite(largest) || isinf(args.power);
  const double norm = is_largest ? largest : largest * pow(*args.out, 1.0 / args.power);
  *args.out = norm * norm;
}

ZS_KERNEL(zs_clip_gradient, ClipGradientArgs, clip_gradient<T>(args))

}  // namespace zs::cuda
