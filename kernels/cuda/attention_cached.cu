#include "kernels/cuda/device.h"

namespace zs::cuda {
namespace {

/// One block a query and head: its threads weigh rows of the cache, then add up elements of the values.
template <class T>
__device__ void attention_cached(const CachedAttentionArgs& args) {
  const T *const qkv = static_cast<const T*>(args.qkv), *const cache = static_cast<const T*>(args.cache);
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
      score = fmaf(to_float(qkv[query + d]), to_float(cache[i * stride + key + d]), score);
    scores[i] = score * args.scale;
    largest = fmaxf(largest, scores[i]);
  }
  largest = block_reduce(largest, [](float a, float b) { return a > b ? a : b; });
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    scores[i] = expf(scores[i] - largest);
    sum += scores[i];
  }
  sum = block_reduce(sum, [](float a, float b) { return a + b; });  // a barrier: all scores are there
  for (std::int64_t d = threadIdx.x; d < args.head_dim; d += kThreads) {
    float total = 0.0f;
    for (std::int64_t i = begin; i < end; ++i)
      total = fmaf(scores[i], to_float(cache[i * stride + kept + key + d]), total);
    static_cast<T*>(args.out)[blockIdx.x * args.head_dim + d] = from_float<T>(total / sum);
  }
}

}  // namespace

ZS_KERNEL(zs_attention_cached, CachedAttentionArgs, attention_cached<T>(args))

}  // namespace zs::cuda
