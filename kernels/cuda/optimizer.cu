#include "kernels/cuda/device.h"

/// AdamW, and the sums that precede it.
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

/// Elements [first, last) of a range, which the block has.
struct Chunk {
  Data in;
  std::int64_t first, last;
  bool is_aligned;
};
__device__ Chunk chunk_of_block(const ReduceArgs& args) {
  const int block = static_cast<int>(blockIdx.x);
  int at = 0, behind = args.count;  // the last range that begins at this block or before it
  while (behind - at > 1) {
    const int middle = (at + behind) / 2;
    if (args.ranges[middle].first_block <= block)
      at = middle;
    else
      behind = middle;
  }
  const std::int64_t first = (block - args.ranges[at].first_block) * args.chunk, elems = args.ranges[at].elems;
  return {args.ranges[at].in, first, first + args.chunk < elems ? first + args.chunk : elems,
          args.ranges[at].is_aligned};
}

/// All elements of this thread's part of the chunk, in the same order whether packs are read or not.
template <class T, class Visit>
__device__ void for_each_of_chunk(const Chunk& chunk, const Visit& visit) {
  constexpr int kElems = 16 / sizeof(T);
  const T* const in = elements<const T>(chunk.in);
  const std::int64_t last = chunk.last;
  for (std::int64_t begin = chunk.first + threadIdx.x * kElems; begin < last; begin += kThreads * kElems) {
    float x[kElems];
    if (chunk.is_aligned && begin + kElems <= last) {
      load_pack(in + begin, x);
      for (int i = 0; i < kElems; ++i) visit(x[i]);
      continue;
    }
    for (std::int64_t i = begin; i < begin + kElems && i < last; ++i) visit(to_float(in[i]));
  }
}

/// start and add: R from nothing, and with one more element; combine: of two.
template <class R, class Add, class Combine>
__device__ void reduce_block(const ReduceArgs& args, const Add& add, const Combine& combine) {
  __shared__ R shared[kThreads];
  const Chunk chunk = chunk_of_block(args);
  R mine = 0;
  with_type(chunk.in,
            [&](auto tag) { for_each_of_chunk<decltype(tag)>(chunk, [&](float x) { mine = add(mine, x); }); });
  const R all = block_reduce(mine, shared, combine);
  if (threadIdx.x == 0) static_cast<R*>(args.parts)[blockIdx.x] = all;
}

template <class R, class Combine>
__device__ R sum_parts(const FinishArgs& args, const Combine& combine) {
  __shared__ R shared[kThreads];
  const R* const parts = static_cast<const R*>(args.parts);
  R mine = 0;
  for (int i = threadIdx.x; i < args.count; i += kThreads) mine = combine(mine, parts[i]);
  return block_reduce(mine, shared, combine);
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

/// A step of one element. Returns the new master weight.
__device__ float adamw_one(const AdamWArgs& args, const Scalars& s, float before, float& m, float& v, float grad) {
  const float g = grad * s.clip_coefficient;
  m = args.beta1 * m + (1.0f - args.beta1) * g;
  v = args.beta2 * v + (1.0f - args.beta2) * g * g;
  return before -
         s.lr * (m / s.bias_correction1 / (sqrtf(v / s.bias_correction2) + args.eps) + args.weight_decay * before);
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
  Scalars& s = *args.scalars;
  const double norm = norm_of(args);
  s.grad_norm = static_cast<float>(norm);
  s.skip = isfinite(s.grad_norm) ? 0.0f : 1.0f;
  s.clip_coefficient = 1.0f;
  if (args.clip > 0 && s.skip == 0.0f)
    s.clip_coefficient = static_cast<float>(fmin(1.0, static_cast<double>(args.clip) / (norm + 1e-6)));
}

extern "C" __global__ void zs_sgd(const SgdArgs args) {
  const Scalars s = *args.scalars;
  const std::int64_t i = global_thread();
  if (s.skip != 0.0f || i >= args.elems) return;
  const float before = args.master[i], g = args.grad[i] * s.clip_coefficient + args.weight_decay * before;
  float step = g;
  if (args.m != nullptr) {
    const float m = args.momentum * args.m[i] + g;
    args.m[i] = m;
    step = args.nesterov ? g + args.momentum * m : m;
  }
  const float master = before - s.lr * step;
  args.master[i] = master;
  if (args.copy != nullptr) args.copy[i] = from_float<Bf16>(master).bits;
}

extern "C" __global__ void zs_lion(const LionArgs args) {
  const Scalars s = *args.scalars;
  const std::int64_t i = global_thread();
  if (s.skip != 0.0f || i >= args.elems) return;
  const float g = args.grad[i] * s.clip_coefficient, m = args.m[i], before = args.master[i];
  const float mean = args.beta1 * m + (1.0f - args.beta1) * g;
  const float sign = mean > 0.0f ? 1.0f : mean < 0.0f ? -1.0f : 0.0f;
  const float master = before - s.lr * (sign + args.weight_decay * before);
  args.master[i] = master;
  args.m[i] = args.beta2 * m + (1.0f - args.beta2) * g;
  if (args.copy != nullptr) args.copy[i] = from_float<Bf16>(master).bits;
}

/// One thread.
extern "C" __global__ void zs_norm_of_powers(const NormOfPowersArgs args) {
  const double largest = float_of(static_cast<std::uint32_t>(*args.largest));
  const bool is_largest = largest == 0.0 || !isfinite(largest) || isinf(args.power);
  const double norm = is_largest ? largest : largest * pow(*args.out, 1.0 / args.power);
  *args.out = norm * norm;
}

extern "C" __global__ void zs_clip_gradient(const ClipGradientArgs args) {
  const std::int64_t i = global_thread();
  if (i >= args.elems) return;
  with_type(args.grad, [&](auto tag) {
    using T = decltype(tag);
    T& x = elements<T>(args.grad)[i];
    x = from_float<T>(to_float(x) * args.scalars->clip_coefficient);
  });
}

extern "C" __global__ void zs_adamw(const AdamWArgs args) {
  constexpr int kElems = 4;
  const Scalars s = *args.scalars;
  if (s.skip != 0.0f) return;
  const std::int64_t begin = global_thread() * kElems;
  if (args.is_aligned && begin + kElems <= args.elems) {
    float master[kElems], m[kElems], v[kElems], grad[kElems];
    load_pack(args.master + begin, master);
    load_pack(args.m + begin, m);
    load_pack(args.v + begin, v);
    load_pack(args.grad + begin, grad);
    for (int i = 0; i < kElems; ++i) master[i] = adamw_one(args, s, master[i], m[i], v[i], grad[i]);
    store_pack(args.master + begin, master);
    store_pack(args.m + begin, m);
    store_pack(args.v + begin, v);
    if (args.copy == nullptr) return;
    std::uint64_t copy = 0;  // one access of 8 bytes
    for (int i = 0; i < kElems; ++i) copy |= static_cast<std::uint64_t>(from_float<Bf16>(master[i]).bits) << 16 * i;
    *reinterpret_cast<std::uint64_t*>(args.copy + begin) = copy;
    return;
  }
  for (std::int64_t i = begin; i < begin + kElems && i < args.elems; ++i) {
    args.master[i] = adamw_one(args, s, args.master[i], args.m[i], args.v[i], args.grad[i]);
    if (args.copy != nullptr) args.copy[i] = from_float<Bf16>(args.master[i]).bits;
  }
}

}  // namespace zs::cuda
