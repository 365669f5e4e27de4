#include "kernels/cuda/device.h"

namespace zs::cuda {
namespace {

__device__ float larger_float(float a, float b) { return a > b ? a : b; }
__device__ double plus_double(double a, double b) { return a + b; }

/// visit(x) for this thread's share of the row's classes.
template <class Visit>
__device__ void for_each_logit(const CrossEntropyArgs& args, const Visit& visit) {
  const Data logits{const_cast<float*>(args.logits), false};
  const std::int64_t first = blockIdx.x * args.stride;
  for_each_pack(args.classes, [&](std::int64_t begin) {
    float x[kRowElems];
    const int count = load_some(logits, first + begin, first + args.classes, args.is_aligned, x);
    for (int i = 0; i < kRowElems; ++i)
      if (i < count) visit(x[i]);
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
  args.losses[row] = static_cast<float>(lse - static_cast<double>(args.logits[row * args.stride + target]));
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
  load_some({const_cast<float*>(args.logits), false}, first + begin, first + args.stride, args.is_aligned, x);
  for (int i = 0; i < kRowElems; ++i) {
    const std::int64_t column = begin + i;
    x[i] = column >= args.classes ? 0.0f : (expf(x[i] - lse) - (column == target ? 1.0f : 0.0f)) * factor;
  }
  store_some(args.dlogits, first + begin, first + args.stride, args.is_aligned, x);
}

}  // namespace zs::cuda
