#include "kernels/cuda/device.h"
#include "kernels/cuda/warp.h"

namespace zs::cuda {
namespace {

__device__ float larger_float(float a, float b) { return a > b ? a : b; }
__device__ double plus_double(double a, double b) { return a + b; }

/// visit(x) for this thread's share of the row's classes.
template <class P, class Visit>
__device__ void for_each_logit(const CrossEntropyArgs& args, const Visit& visit) {
  const std::int64_t first = blockIdx.x * args.stride;
  for_each_pack(args.classes, [&](std::int64_t begin) {
    float x[kRowElems];
    P::load(args.logits, first + begin, first + args.stride, x);
    for (int i = 0; i < kRowElems; ++i)
      if (begin + i < args.classes) visit(x[i]);
  });
}

/// e^x for x <= 0. Of bf16 by the GPU's own function, whose errors are far below the operand's.
template <class T>
__device__ float exp_of(float x) {
  return sizeof(T) == sizeof(Bf16) ? exp2_of(x * kLog2E) : expf(x);
}

/// Sums over the classes that one thread has seen: the largest logit, and the sum of e^(logit - largest).
struct PartOfRow {
  float largest = -3.402823466e38f;  // not -infinity: a pack of nothing else adds 0
  double total = 0;
};

/// Adds a pack; where it has a larger logit, what was added before is rescaled (Milakov, Gimelshein 2018).
template <class T>
__device__ void add_pack(PartOfRow& part, const float (&x)[kRowElems], std::int64_t count) {
  float high = part.largest, sum = 0;
  for (int i = 0; i < kRowElems; ++i) high = i < count ? larger_float(high, x[i]) : high;
  if (high > part.largest) {
    part.total *= static_cast<double>(exp_of<T>(part.largest - high));
    part.largest = high;
  }
  for (int i = 0; i < kRowElems; ++i) sum += i < count ? exp_of<T>(x[i] - high) : 0.0f;
  part.total += static_cast<double>(sum);
}

/// One block a row, which it reads from memory once: when it comes back to it, the row lies in the GPU's caches.
template <class P>
__device__ void cross_entropy_in_place(const CrossEntropyArgs& args) {
  using T = typename P::Type;
  const std::int64_t row = blockIdx.x, first = row * args.stride, target = args.targets[row];
  if (target < 0 || target >= args.classes) __trap();
  float at_target = 0;
  if (threadIdx.x == 0) at_target = to_float(static_cast<const T*>(args.logits)[first + target]);
  PartOfRow part;
  for_each_pack(args.classes, [&](std::int64_t begin) {
    float x[kRowElems];
    P::load(args.logits, first + begin, first + args.stride, x);
    add_pack<T>(part, x, args.classes - begin);
  });
  const float largest = block_reduce(part.largest, larger_float);
  const double mine = part.total * exp(static_cast<double>(part.largest) - static_cast<double>(largest));
  const double lse = static_cast<double>(largest) + log(block_reduce(mine, plus_double));
  if (threadIdx.x == 0) args.losses[row] = static_cast<float>(lse - static_cast<double>(at_target));
  const float row_lse = static_cast<float>(lse), factor = args.factor * args.dloss[0];
  for_each_pack(args.stride, [&](std::int64_t begin) {
    float x[kRowElems];
    P::load(args.logits, first + begin, first + args.stride, x);
    for (int i = 0; i < kRowElems; ++i) {
      const std::int64_t column = begin + i;
      x[i] = column >= args.classes ? 0.0f : (exp_of<T>(x[i] - row_lse) - (column == target ? 1.0f : 0.0f)) * factor;
    }
    P::store(args.logits, first + begin, first + args.stride, x);
  });
}

/// One block a row; sums are carried in f64, a vocabulary is long.
template <class P>
__device__ void cross_entropy_forward(const CrossEntropyArgs& args) {
  const std::int64_t row = blockIdx.x;
  const std::int32_t target = args.targets[row];
  const bool has_target = target != kNoTarget;
  if (has_target && (target < 0 || target >= args.classes)) __trap();
  float mine = -INFINITY;
  for_each_logit<P>(args, [&](float x) { mine = larger_float(mine, x); });
  const float largest = block_reduce(mine, larger_float);
  double sum = 0;
  for_each_logit<P>(args, [&](float x) { sum += static_cast<double>(expf(x - largest)); });
  const double lse = static_cast<double>(largest) + log(block_reduce(sum, plus_double));
  if (threadIdx.x != 0) return;
  args.lse[row] = static_cast<float>(lse);
  const float at_target = has_target ? static_cast<const float*>(args.logits)[row * args.stride + target] : 0.0f;
  args.losses[row] = static_cast<float>(lse - static_cast<double>(at_target));
}

/// dlogits may be logits: each thread writes what it alone has read.
template <class P>
__device__ void cross_entropy_backward(const CrossEntropyArgs& args) {
  const std::int64_t packs = (args.stride + kRowElems - 1) / kRowElems;
  const std::int64_t row = global_thread() / packs, begin = global_thread() % packs * kRowElems,
                     first = row * args.stride;
  if (row >= args.rows) return;
  const std::int64_t target = args.targets[row];
  if (target != kNoTarget && (target < 0 || target >= args.classes)) __trap();
  const float lse = args.lse[row], factor = args.factor * args.dloss[0];
  float x[kRowElems];
  P::template load<float>(args.logits, first + begin, first + args.stride, x);
  for (int i = 0; i < kRowElems; ++i) {
    const std::int64_t column = begin + i;
    x[i] = column >= args.classes ? 0.0f : (expf(x[i] - lse) - (column == target ? 1.0f : 0.0f)) * factor;
  }
  P::store(args.dlogits, first + begin, first + args.stride, x);
}

}  // namespace

ZS_KERNEL_OF(zs_cross_entropy_forward, float, float, CrossEntropyArgs, ZS_BY_PACKS(cross_entropy_forward<P>(args)))
ZS_KERNEL(zs_cross_entropy_backward, CrossEntropyArgs, ZS_BY_PACKS(cross_entropy_backward<P>(args)))
ZS_KERNEL(zs_cross_entropy_in_place, CrossEntropyArgs, ZS_BY_PACKS(cross_entropy_in_place<P>(args)))

}  // namespace zs::cuda
