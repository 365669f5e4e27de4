#pragma once

#include "model/nn/linear.h"

namespace zs {

/// Options of CrossAttention.
struct CrossAttentionOptions {
  std::int64_t width = 0, heads = 0;
  std::int64_t context_width = 0;  ///< width of the tokens that are seen; 0: the same
  std::int64_t kv_heads = 0;       ///< each shared by heads / kv_heads query heads; 0: as many as heads
  bool has_bias = true;
  Init out_init = {.normal_std = kWeightDeviation};
};

/// Attention of one sequence's tokens to another's (Vaswani et al. 2017): "q"; "kv", one product whose rows are the
/// keys', then the values'; "out". Keeps the probabilities (B, heads, T, S) for backward.
class CrossAttention : public Layer<CrossAttention> {
 public:
  CrossAttention(std::string path, const CrossAttentionOptions& options);

  /// x (B, T, width), context (B, S, context_width) -> (B, T, width). mask: as dot_product_attention's.
  Tensor forward(const Tensor& x, const Tensor& context, const Tensor& mask = {});

 private:
  CrossAttentionOptions options_;
  std::int64_t head_dim_;
  Linear &q_, &kv_, &out_;
};

}  // namespace zs
