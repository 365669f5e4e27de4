#include "runtime/base/usage_error.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/ops.h"

namespace zs {
namespace {

struct CachedStep {
  AttentionDims dims;
  std::int64_t first;
  Buffer sinks;  // empty: none

  std::int64_t row() const { return 2 * kv_heads_of(dims) * dims.head_dim; }
};

CachedStep cached_step(const Tensor& qkv, const CachedAttentionOptions& options) {
  require_float("cached_attention", "qkv", qkv);
  const std::int64_t keys = options.kv_heads > 0 ? options.kv_heads : options.heads, all = options.heads + 2 * keys;
  if (options.heads <= 0 || options.heads % keys != 0 || qkv.shape().rank() != 3 || qkv.shape()[0] != 1 ||
      qkv.shape()[2] % all != 0)
    throw UsageError(fmt::format("op cached_attention: qkv is {}, for {} query heads and {} key and value heads",
                                 qkv.describe(), options.heads, keys),
                     "expected (1, T, (heads + 2 kv_heads) head_dim), with heads a multiple of kv_heads");
  return {{1, qkv.shape()[1], options.heads, qkv.shape()[2] / all, keys, options.window},
          options.first,
          options.sinks != nullptr ? options.sinks->value() : Buffer{}};
}

/// The tokens' keys and values to their rows of the cache.
void keep_rows(const Tensor& qkv, const Tensor& cache, const CachedStep& step) {
  Context& context = qkv.context();
  const std::int64_t width = qkv_width_of(step.dims), row = step.row(), time = step.dims.time;
  const Buffer in = qkv.buffer().slice(width - row, time * width - (width - row)),
               out = cache.buffer().slice(step.first * row, time * row);
  context.launch({"keep_keys", {in}, {out}},
                 [&kernels = context.kernels(), in, out, width, row, time](ExecContext& exec) {
                   kernels.copy_rows(exec, out, in, {.rows = time, .run = row, .out_stride = row, .in_stride = width});
                 });
}

}  // namespace

Tensor cached_attention(const Tensor& qkv, const Tensor& cache, const CachedAttentionOptions& options) {
  const CachedStep step = cached_step(qkv, options);
  const AttentionDims& dims = step.dims;
  const std::int64_t end = step.first + dims.time;
  if (cache.shape().rank() != 2 || cache.shape()[1] != step.row() || cache.shape()[0] < end ||
      cache.dtype() != qkv.dtype())
    throw UsageError(
        fmt::format("op cached_attention: the cache is {}, for {} tokens of {}", cache.describe(), end, qkv.describe()),
        "expected (capacity, 2 kv_heads head_dim) in qkv's dtype");
  keep_rows(qkv, cache, step);
  if (step.first == 0) return causal_attention(qkv, dims.heads, dims.kv_heads, dims.window, {}, options.sinks);
  Context& context = qkv.context();
  Tensor y = Tensor::empty(context, {1, dims.time, dims.heads * dims.head_dim}, qkv.dtype());
  // As many as the longest sequence needs: its size does not change from token to token.
  const std::int64_t scores = dims.time * dims.heads * (cache.shape()[0] + dims.head_dim),
                     bytes = scores * size_of(DType::f32);
  const Buffer out = y.buffer(), in = qkv.buffer(), rows = cache.buffer().slice(0, end * step.row());
  OpInfo info{"cached_attention", {in, rows}, {out}, bytes};
  if (!step.sinks.empty()) info.reads.push_back(step.sinks);
  context.launch(std::move(info),
                 [&kernels = context.kernels(), out, in, rows, step, scores, bytes](ExecContext& exec) {
                   const Buffer work{exec.scratch(bytes), scores, DType::f32, out.device};
                   if (step.sinks.empty())
                     return kernels.attention_cached(exec, out, work, in, rows, step.dims, step.first);
                   kernels.sinks.cached(exec, out, work, in, rows, step.sinks, step.dims, step.first);
                 });
  return y;
}

}  // namespace zs
