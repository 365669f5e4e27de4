#include <cmath>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/dot_product_attention.h"
#include "runtime/tensor/host_view.h"
#include "runtime/tensor/layout.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/ops.h"
#include "runtime/tensor/pointwise.h"
#include "runtime/tensor/reduction.h"
#include "runtime/tensor/values.h"

namespace zs {
namespace {

void check(const Tensor& q, const Tensor& k, const Tensor& v, const DotProductOptions& options) {
  require_float("dot_product_attention", "queries", q);
  require_float("dot_product_attention", "keys", k);
  require_float("dot_product_attention", "values", v);
  const Shape &a = q.shape(), &b = k.shape(), &c = v.shape();
  const bool fits = a.rank() == 4 && b.rank() == 4 && c.rank() == 4 && a[0] == b[0] && b[0] == c[0] && b[1] > 0 &&
                    a[1] % b[1] == 0 && b[1] == c[1] && b[2] == c[2] && a[3] == b[3] && q.dtype() == k.dtype() &&
                    k.dtype() == v.dtype();
  if (!fits)
    throw UsageError(fmt::format("op dot_product_attention of {}, {} and {}", q.describe(), k.describe(), v.describe()),
                     "give queries (B, heads, T, D), keys (B, kv_heads, S, D) and values (B, kv_heads, S, E)");
  if (options.is_causal && a[2] > b[2])
    throw UsageError(fmt::format("op dot_product_attention: {} queries, causal, to {} keys", a[2], b[2]),
                     "a query sees a key at least");
}

/// A mask that is to be added has values far below 0 where nothing is seen, which here would be what is. On a GPU the
/// look at them would wait for it.
void check_mask(const Tensor& mask) {
  if (mask.context().device().kind() != DeviceKind::cpu) return;
  launch_on_host(mask.context(), {"check_mask", {mask.buffer()}, {}},
                 [](ExecContext&, const std::vector<Buffer>& reads) {
                   const Buffer& in = reads[0];
                   const auto is_below = [&](std::int64_t i) {
                     if (in.dtype == DType::i32) return in.as<std::int32_t>()[i] < 0;
                     return (in.dtype == DType::f32 ? in.as<float>()[i] : static_cast<float>(in.as<BFloat16>()[i])) < 0;
                   };
                   for (std::int64_t i = 0; i < in.elems; ++i)
                     if (is_below(i))
                       throw UsageError(fmt::format("the mask has a value below 0, element {}", i),
                                        "give 1 where a key is seen and 0 where not: a mask is not added");
                 });
}

/// (B, heads, T, D) to (B, T, heads D).
Tensor by_token(const Tensor& x) {
  const Shape& shape = x.shape();
  return transpose(x, 1, 2).reshape({shape[0], shape[2], shape[1] * shape[3]});
}

Tensor fused(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Shape& shape = q.shape();
  const Tensor y = causal_attention(concat({by_token(q), by_token(k), by_token(v)}, 2), shape[1], k.shape()[1]);
  return transpose(y.reshape({shape[0], shape[2], shape[1], shape[3]}), 1, 2);
}

}  // namespace

Tensor dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v, const DotProductOptions& options) {
  check(q, k, v, options);
  const std::int64_t batch = q.shape()[0], heads = q.shape()[1], tokens = q.shape()[2], dim = q.shape()[3];
  const std::int64_t groups = k.shape()[1], each = heads / groups, seen = k.shape()[2], width = v.shape()[3];
  if (options.is_causal && !options.mask && tokens == seen && dim == width && options.scale == 0) return fused(q, k, v);
  const float scale = options.scale != 0 ? options.scale : 1 / std::sqrt(static_cast<float>(dim));
  Tensor scores = matmul((q * scale).reshape({batch, groups, each * tokens, dim}), transpose(k, 2, 3))
                      .reshape({batch, heads, tokens, seen});
  constexpr float kUnseen = -1e30f;
  Context& context = q.context();
  if (options.is_causal)
    scores =
        where(le(arange(context, seen).reshape({1, seen}), arange(context, tokens, seen - tokens).reshape({tokens, 1})),
              scores, kUnseen);
  if (options.mask) check_mask(options.mask);
  if (options.mask) scores = where(options.mask, scores, kUnseen);
  const Tensor shares = softmax(scores).reshape({batch, groups, each * tokens, seen});
  return matmul(shares, v).reshape({batch, heads, tokens, width});
}

}  // namespace zs
