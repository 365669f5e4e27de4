#include <cmath>

#include "kernels/checks.h"
#include "kernels/cuda/launch.h"
#include "kernels/families.h"

namespace zs::cuda {
namespace {

void attention_cached(ExecContext& ctx, Buffer out, Buffer scores, Buffer qkv, Buffer cache, const AttentionDims& dims,
                      std::int64_t first) {
  checks::attention_cached(out, scores, qkv, cache, dims, first);
  const CachedAttentionArgs args{.out = elements_of(out),
                                 .qkv = elements_of(qkv),
                                 .cache = elements_of(cache),
                                 .scores = floats_of(scores),
                                 .row = first + dims.time + dims.head_dim,
                                 .first = first,
                                 .heads = dims.heads,
                                 .kv_heads = kv_heads_of(dims),
                                 .head_dim = dims.head_dim,
                                 .window = dims.window,
                                 .scale = 1.0f / std::sqrt(static_cast<float>(dims.head_dim))};
  launch(ctx, typed("zs_attention_cached", qkv.dtype), dims.time * dims.heads, kThreads, &args);
}

}  // namespace

void fill_attention_cached(KernelTable& table, KernelNames& names) {
  table.attention_cached = attention_cached;
  add_typed(names, {"zs_attention_cached"});
}

}  // namespace zs::cuda
