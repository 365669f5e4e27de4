#include "kernels/cuda/device.h"
#include "kernels/cuda/warp.h"

namespace zs::cuda {
namespace {

__device__ float larger_float(float a, float b) { return a > b ? a : b; }
__device__ double plus_double(double a, double b) { return a + b; }

/// visit(x) for this thread's share of the row's classes.
template <class Visit>
__device__ void for_each_logit(const CrossEntropyArgs& args, const Visit& visit) {
  const std::int64_t first = blockIdx.x * args.stride;
  for_each_pack(args.classes, [&](std::int64_t begin) {
    float x[kRowElems];
    const int count = load_some(args.logits, first + begin, first + args.classes, args.is_aligned, x);
    for (int i = 0; i < kRowElems; ++i)
      if (i < count) visit(x[i]);
  });
}

/// e^x for x <= 0. Of bf16 by the GPU's own function, whose errors are far below the operand's.
template <class T>
__device__ float exp_of(float x) {
  constexpr float kLog2E = 1.44269504088896340736f;
  return sizeof(T) == sizeof(Bf16) ? exp2_of(x * kLog2E) : expf(x);
}

/// Of the classes that one thread has seen: the largest logit, and the sum of e^(logit - largest).
struct PartOfRow {
  float largest = -3.402823466e38f;  // not -infinity: a pack of nothing else adds 0
  double total = 0;
};

/// What was added before is rescaled where a pack has a larger logit (Milakov, Gimelshein 2018).
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
template <class T, class Packs>
__device__ void cross_entropy_in_place(const CrossEntropyArgs& args) {
  __shared__ float largest_of[kThreads];
  __shared__ double sum_of[kThreads];
  const std::int64_t row = blockIdx.x, first = row * args.stride, target = args.targets[row];
  if (target < 0 || target >= args.classes) __trap();
  float at_target = 0;
  if (threadIdx.x == 0) at_target = to_float(elements<const T>(args.logits)[first + target]);
  PartOfRow part;
  for_each_pack(args.classes, [&](std::int64_t begin) {
    float x[kRowElems];
    Packs::load(args.logits, first + begin, first + args.stride, x);
    add_pack<T>(part, x, args.classes - begin);
  });
  const float largest = block_reduce(part.largest, largest_of, larger_float);
  const double mine = part.total * exp(static_cast<double>(part.largest) - static_cast<double>(largest));
  const double lse = static_cast<double>(largest) + log(block_reduce(mine, sum_of, plus_double));
  if (threadIdx.x == 0) args.losses[row] = static_cast<float>(lse - static_cast<double>(at_target));
  const float row_lse = static_cast<float>(lse), factor = args.factor * args.dloss[0];
  for_each_pack(args.stride, [&](std::int64_t begin) {
    float x[kRowElems];
    Packs::load(args.logits, first + begin, first + args.stride, x);
    for (int i = 0; i < kRowElems; ++i) {
      const std::int64_t column = begin + i;
      x[i] = column >= args.classes ? 0.0f : (exp_of<T>(x[i] - row_lse) - (column == target ? 1.0f : 0.0f)) * factor;
    }
    Packs::store(args.logits, first + begin, first + args.stride, x);
  });
}

}  // namespace

/// One block a row; sums are carried in f64, a vocabulary is long.
extern "C" __global__ void zs_cross_entropy_forward(const CrossEntropyArgs args) {
  __shared__ float largest_of[kThreads];
  __shared__ double sum_of[kThreads];
  const std::int64_t row = blockIdx.x;
  const std::int32_t target = args.targets[row];
  if (target < 0 || target >= args.classes) __trap();
  float mine = -INFINITY;
  for_each_logit(args, [&](float x) { mine = larger_float(mine, x); });
  const float largest = block_reduce(mine, largest_of, larger_float);
  double sum = 0;
  for_each_logit(args, [&](float x) { sum += static_cast<double>(expf(x - largest)); });
  const double lse = static_cast<double>(largest) + log(block_reduce(sum, sum_of, plus_double));
  if (threadIdx.x != 0) return;
  args.lse[row] = static_cast<float>(lse);
  args.losses[row] =
      static_cast<float>(lse - static_cast<double>(elements<const float>(args.logits)[row * args.stride + target]));
}

/// dlogits may be logits: each thread writes what it alone has read.
extern "C" __global__ void zs_cross_entropy_backward(const CrossEntropyArgs args) {
  const std::int64_t packs = (args.stride + kRowElems - 1) / kRowElems;
  const std::int64_t row = global_thread() / packs, begin = global_thread() % packs * kRowElems,
                     first = row * args.stride;
  if (row >= args.rows) return;
  const std::int64_t target = args.targets[row];
  if (target < 0 || target >= args.classes) __trap();
  const float lse = args.lse[row], factor = args.factor * args.dloss[0];
  float x[kRowElems];
  load_some(args.logits, first + begin, first + args.stride, args.is_aligned, x);
  for (int i = 0; i < kRowElems; ++i) {
    const std::int64_t column = begin + i;
    x[i] = column >= args.classes ? 0.0f : (expf(x[i] - lse) - (column == target ? 1.0f : 0.0f)) * factor;
  }
  store_some(args.dlogits, first + begin, first + args.stride, args.is_aligned, x);
}

extern "C" __global__ void zs_cross_entropy_in_place_f32(const CrossEntropyArgs args) {
  if (args.is_aligned) return cross_entropy_in_place<float, WholePacks<float>>(args);
  cross_entropy_in_place<float, AnyPacks>(args);
}
extern "C" __global__ void zs_cross_entropy_in_place_bf16(const CrossEntropyArgs args) {
  if (args.is_aligned) return cross_entropy_in_place<Bf16, WholePacks<Bf16>>(args);
  cross_entropy_in_place<Bf16, AnyPacks>(args);
}

}  // namespace zs::cuda
