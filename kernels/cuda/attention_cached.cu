#include "kernels/cuda/device.h"

namespace zs::cuda {
namespace {

__device__ inline float cached_element(const Data& data, std::int64_t at) {
  return data.is_bf16 ? to_float(elements<const Bf16>(data)[at]) : elements<const float>(data)[at];
}

}  // namespace

/// One block a query and head: its threads weigh rows of the cache, then add up elements of the values.
extern "C" __global__ void __launch_bounds__(kThreads) zs_attention_cached(const CachedAttentionArgs args) {
  __shared__ float largest_of[kThreads];
  __shared__ float sum_of[kThreads];
  const std::int64_t token = blockIdx.x / args.heads, head = blockIdx.x % args.heads, end = args.first + token + 1;
  const std::int64_t begin = args.window > 0 && args.window < end ? end - args.window : 0;
  const std::int64_t kept = args.kv_heads * args.head_dim, stride = 2 * kept,
                     key = head / (args.heads / args.kv_heads) * args.head_dim;
  const std::int64_t query = token * (args.heads * args.head_dim + 2 * kept) + head * args.head_dim;
  float* const scores = args.scores + blockIdx.x * args.row;
  float largest = -INFINITY, sum = 0.0f;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    float score = 0.0f;
    for (std::int64_t d = 0; d < args.head_dim; ++d)
      score = fmaf(cached_element(args.qkv, query + d), cached_element(args.cache, i * stride + key + d), score);
    scores[i] = score * args.scale;
    largest = fmaxf(largest, scores[i]);
  }
  largest = block_reduce(largest, largest_of, [](float a, float b) { return a > b ? a : b; });
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    scores[i] = expf(scores[i] - largest);
    sum += scores[i];
  }
  sum = block_reduce(sum, sum_of, [](float a, float b) { return a + b; });  // a barrier: all scores are there
  for (std::int64_t d = threadIdx.x; d < args.head_dim; d += kThreads) {
    float total = 0.0f;
    for (std::int64_t i = begin; i < end; ++i)
      total = fmaf(scores[i], cached_element(args.cache, i * stride + kept + key + d), total);
    with_type(args.out, [&](auto tag) {
      using T = decltype(tag);
      elements<T>(args.out)[blockIdx.x * args.head_dim + d] = from_float<T>(total / sum);
    });
  }
}

}  // namespace zs::cuda
