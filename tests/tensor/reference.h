#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"

namespace zs::test {

/// Forward formulas in double precision, written from their papers and sharing no code with the kernels: the oracle of
/// the gradient checks. Row-major; shapes as in runtime/tensor/ops.h.
using Values = std::vector<double>;

namespace ref {

Values embedding(const std::vector<std::int32_t>& ids, std::int64_t time, const Values& table, const Values* positions,
                 std::int64_t width);
Values layer_norm(const Values& x, const Values& gamma, const Values& beta, double eps);
Values rms_norm(const Values& x, const Values& gamma, double eps);
/// Rows of `width`: silu of the first half times the second.
Values swiglu(const Values& x, std::int64_t width);
Values geglu(const Values& x, std::int64_t width);
Values linear(const Values& x, const Values& weight, const Values* bias, std::int64_t inputs);
Values gelu(const Values& x, GeluKind kind);
Values add(const Values& a, const Values& b);

struct Attention {
  std::int64_t batch, time, heads, head_dim;
  std::int64_t kv_heads = heads;
  std::int64_t window = time;

  std::int64_t width() const { return (heads + 2 * kv_heads) * head_dim; }  // of a token's q, k and v
};
/// Pairs of halves, turned by rotation matrices.
Values rotary(const Values& qkv, const Attention& dims, const RotaryOptions& options);
/// RMS norms of query heads and of key heads.
Values qk_norm(const Values& qkv, const Values& q_gamma, const Values& k_gamma, const Attention& dims, double eps);
/// sinks (heads), or null: a logit more in each row of a head, without a value.
Values causal_attention(const Values& qkv, const Attention& dims, const Values* sinks = nullptr);

/// Mean cross entropy; `classes` real rows of weight (V', width).
double lm_head_loss(const Values& x, const Values& weight, const std::vector<std::int32_t>& targets,
                    std::int64_t classes);

}  // namespace ref
}  // namespace zs::test
