#include "kernels/cuda/device.h"
#include "kernels/cuda/general_args.h"

namespace zs::cuda {
namespace {

__device__ std::int64_t offset_of(const StridedDims& dims, std::int64_t index) {
  std::int64_t offset = 0;
  for (int d = kMostDims - 1; d >= 0; --d) {
    if (d >= dims.dims) continue;
    offset += index % dims.sizes[d] * dims.strides[d];
    index /= dims.sizes[d];
  }
  return offset;
}

__device__ void store_float(const ReduceDimsArgs& args, std::int64_t at, float value) {
  if (args.is_out_bf16)
    static_cast<Bf16*>(args.out)[at] = from_float<Bf16>(value);
  else
    static_cast<float*>(args.out)[at] = value;
}
__device__ void store_result(const ReduceDimsArgs& args, std::int64_t at, const SumAccumulator& sum) {
  store_float(args, at, static_cast<float>(sum.value * static_cast<double>(args.factor)));
}
__device__ void store_result(const ReduceDimsArgs& args, std::int64_t at, const MaxAccumulator& max) {
  if (args.op == ReduceKind::max) return store_float(args, at, max.value);
  static_cast<std::int32_t*>(args.out)[at] = static_cast<std::int32_t>(max.at);
}

/// Every `step`-th element of the output's, from `first` on.
template <class T, class Accumulator>
__device__ Accumulator reduce_some(const ReduceDimsArgs& args, std::int64_t output, std::int64_t first,
                                   std::int64_t step) {
  Accumulator mine;
  clear(mine);
  const T* const in = static_cast<const T*>(args.in) + offset_of(args.kept, output);
  for (std::int64_t i = first; i < args.reduced.elems; i += step)
    take(mine, to_float(in[offset_of(args.reduced, i)]), i);
  return mine;
}

/// An output for each thread, whose neighbours' elements lie beside its own.
template <class T, class Accumulator>
__device__ void reduce_by_thread(const ReduceDimsArgs& args) {
  const std::int64_t output = global_thread();
  if (output < args.kept.elems) store_result(args, output, reduce_some<T, Accumulator>(args, output, 0, 1));
}

/// An output for each block.
template <class T, class Accumulator>
__device__ void reduce_by_block(const ReduceDimsArgs& args) {
  const std::int64_t output = blockIdx.x;
  const Accumulator mine = reduce_some<T, Accumulator>(args, output, threadIdx.x, kThreads);
  const Accumulator all = block_reduce(mine, [](Accumulator a, const Accumulator& b) {
    merge(a, b);
    return a;
  });
  if (threadIdx.x == 0) store_result(args, output, all);
}

}  // namespace

ZS_KERNEL(zs_reduce_lines, ReduceDimsArgs,
          args.op == ReduceKind::sum ? reduce_by_thread<T, SumAccumulator>(args)
                                     : reduce_by_thread<T, MaxAccumulator>(args))
ZS_KERNEL(zs_reduce_dims, ReduceDimsArgs,
          args.op == ReduceKind::sum ? reduce_by_block<T, SumAccumulator>(args)
                                     : reduce_by_block<T, MaxAccumulator>(args))

}  // namespace zs::cuda
