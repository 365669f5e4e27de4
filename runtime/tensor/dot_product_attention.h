#pragma once

#include "runtime/tensor/tensor.h"

namespace zs {

/// Options of dot_product_attention().
struct DotProductOptions {
  bool is_causal = false;  ///< query t of T sees the keys up to S - T + t, so that the last one sees all
  float scale = 0;         ///< factor of the products; 0: 1 / sqrt(D)
  /// f32, bf16 or i32, to be broadcast to (B, heads, T, S): 0 where a query does not see a key. Each sees one at least.
  /// On the CPU a value below 0, as masks have that are added, is a UsageError of the op's work.
  Tensor mask = {};
};

/// Attention of queries (B, heads, T, D) to keys (B, kv_heads, S, D) with values (B, kv_heads, S, E), of one dtype,
/// where kv_heads divides heads: (B, heads, T, E). The probabilities (B, heads, T, S) are kept for backward, but for a
/// causal one without a mask, with T = S and D = E and the default scale, which is causal_attention's.
Tensor dot_product_attention(const Tensor& queries, const Tensor& keys, const Tensor& values,
                             const DotProductOptions& options = {});

}  // namespace zs
