#pragma once

#include <optional>

#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/documents.h"
#include "runtime/tensor/layout.h"
#include "runtime/tensor/parameter.h"
#include "runtime/tensor/reduction.h"
#include "runtime/tensor/tensor.h"

namespace zs {

// The ops that models are made of; general ones are in arithmetic.h, layout.h and reduction.h. Every op enqueues on the
// context's compute stream and records its backward. Shapes: B batch, T time, C width, N = B * T tokens, which may be
// none: outputs are empty then and gradients zeros. Activations are f32 or bf16, the dtype of the parameters they meet;
// formulas stand in kernels/kernels.h. Arguments that do not fit are a UsageError that names the op and the argument.

/// (B, T) i32 ids -> (B, T, C): table (V, C) rows, plus rows of positions from `first` on, (>= first + T, C), where
/// given; each document begins at `first`. With a first other than 0 without gradient. Tokens that are `padding` give
/// their row of the table no gradient; -1: there are none.
Tensor embedding(const Tensor& ids, Parameter& table, Parameter* positions, std::int64_t first = 0,
                 const Documents& documents = {}, std::int64_t padding = -1);

/// (..., C) -> (..., C), gamma and beta (C).
Tensor layer_norm(const Tensor& x, Parameter& gamma, Parameter& beta, float eps = 1e-5f);

/// (..., C) -> (..., C), gamma (C). Factors are offset + gamma, added in f32.
Tensor rms_norm(const Tensor& x, Parameter& gamma, float eps = 1e-5f, float offset = 0);

/// x + residual, and its norm.
struct SumAndNorm {
  Tensor sum, y;
};
/// x + residual, both (..., C), and the norm of that sum, in one pass: the same bits as add and the norm.
SumAndNorm add_layer_norm(const Tensor& x, const Tensor& residual, Parameter& gamma, Parameter& beta,
                          float eps = 1e-5f);
/// x + residual and the rms_norm of that sum, as add_layer_norm.
SumAndNorm add_rms_norm(const Tensor& x, const Tensor& residual, Parameter& gamma, float eps = 1e-5f, float offset = 0);

/// (..., in) -> (..., out): x weight^T + bias; weight (out, in), bias (out) or null.
Tensor linear(const Tensor& x, Parameter& weight, Parameter* bias);
/// (..., in) -> (..., rows): x times some rows, from `first` on, of a weight that is frozen.
Tensor linear_rows(const Tensor& x, Parameter& weight, std::int64_t first, std::int64_t rows);

/// x times the normal distribution function at x (Hendrycks, Gimpel 2016), as `kind` computes that.
Tensor gelu(const Tensor& x, GeluKind kind);

/// gelu(linear(x, weight, bias), kind), by one product where the back end has that: then GELU may be of sums that are
/// not rounded yet. A linear that takes what this or gelu gives multiplies by GELU's gradient in the product of its own
/// backward, in the same way.
Tensor linear_gelu(const Tensor& x, Parameter& weight, Parameter* bias, GeluKind kind);

/// (..., 2 F) -> (..., F): silu of the first half of each row times the second.
Tensor swiglu(const Tensor& x);
/// (..., 2 F) -> (..., F): gelu, by tanh, of the first half of each row times the second.
Tensor geglu(const Tensor& x);

/// A parameter's value, copied, for ops that take tensors; what comes back to it is added to the parameter's gradient.
Tensor as_tensor(Context& context, Parameter& parameter);
/// Some rows of a parameter's value, from `first` on, copied in f32; without gradient.
Tensor rows_of(Context& context, const Parameter& parameter, std::int64_t first, std::int64_t rows);

/// Values of x in f32 or bf16, rounded to nearest even; x itself where it has that dtype.
Tensor cast(const Tensor& x, DType dtype);

/// (B, T, (heads + 2 kv_heads) head_dim) interleaved q, k, v -> (B, T, heads head_dim). kv_heads: 0 for as many as
/// heads, or a divisor of them. window: how many keys a query sees, its own token's the last of them; 0: all up to
/// that. It sees none of another document: every document's results are the bits that it has alone. sinks (heads), or
/// null: a logit more in the softmax of each of a head's rows, which has no value (OpenAI 2025, gpt-oss); on the CPU,
/// elsewhere a UsageError.
Tensor causal_attention(const Tensor& qkv, std::int64_t heads, std::int64_t kv_heads = 0, std::int64_t window = 0,
                        const Documents& documents = {}, Parameter* sinks = nullptr);

/// Options of cached_attention.
struct CachedAttentionOptions {
  std::int64_t first = 0;  ///< position of the first token of qkv: so many rows of the cache count
  std::int64_t heads = 0, kv_heads = 0, window = 0;
  Parameter* sinks = nullptr;
};
/// causal_attention of a sequence's tokens, (1, T, ...), of which the earlier ones' keys and values are rows of
/// `cache`, (capacity, 2 kv_heads head_dim): a token's keys, then its values. Writes the rows of these tokens, too.
/// Without gradient.
Tensor cached_attention(const Tensor& qkv, const Tensor& cache, const CachedAttentionOptions& options);

/// qkv with queries and keys turned by their positions, from options.first on in each document.
Tensor rotary(const Tensor& qkv, std::int64_t heads, std::int64_t kv_heads = 0, const RotaryOptions& options = {},
              const Documents& documents = {});

/// Options of an RMS norm: what is added to the mean square, and to the weights.
struct RmsOptions {
  float eps = 1e-5f, offset = 0;
};
/// qkv with an RMS norm of every query head and of every key head, by weights (head_dim) of their own.
Tensor qk_norm(const Tensor& qkv, Parameter& q_weight, Parameter& k_weight, std::int64_t heads, std::int64_t kv_heads,
               const RmsOptions& options = {});

/// Part of a head's classes, where ranks have them one after the other: the weight is this rank's rows of it.
struct ClassParts {
  std::int64_t first = 0;  ///< class of the weight's first row
  /// Makes x (f32) its sum over the ranks, or the largest, in place; enqueues. null: the weight has all classes.
  std::function<void(const Tensor& x, bool takes_largest)> combine = {};
};

/// Options of lm_head_loss.
struct LossOptions {
  /// Seed of the backward. With it, the gradients, the weight's included, are computed in forward, chunk by chunk, and
  /// backward(loss, seed), with this seed and no op in between, must follow in the same micro-batch.
  std::optional<float> seed = {};
  std::int64_t chunk = 0;  ///< tokens whose logits exist at once; 0: lm_head_chunk_rows
  /// Tokens with this target count for nothing. The mean is over the others, but with `weights` over all N.
  std::optional<std::int32_t> ignored = {};
  /// f32 (N), no gradient: what each token's loss is multiplied with; empty: alike.
  Tensor weights = {};
  /// Parts of the classes, where ranks have them: the loss is of all, on each. Ranks exchange the largest of a row of
  /// logits, the sum of exponentials and the target's, and the sum of the gradients of x.
  ClassParts parts = {};
};

/// Scalar f32: mean over N tokens (0 where none counts) of the cross entropy of softmax(x weight^T) against targets
/// (N) i32.
/// x (..., C), weight (V', C) of which the first `classes` rows are real and the rest padding, masked. Logits exist for
/// a chunk of tokens at a time; backward computes each chunk again, a tenth of a GPT-2 124M's arithmetic, unless there
/// is a seed.
Tensor lm_head_loss(const Tensor& x, Parameter& weight, const Tensor& targets, std::int64_t classes,
                    const LossOptions& options = {});

/// (N', C) -> (N', V') f32 logits, without gradient, of the weight's rows: for sampling.
Tensor lm_head_logits(const Tensor& x, Parameter& weight);

/// Tokens whose logits exist at once: shares of all tokens as equal as multiples of 32 can be, whose (rows, V') f32
/// keep within 128 MiB, on GPUs 1 GiB.
std::int64_t lm_head_chunk_rows(std::int64_t tokens, std::int64_t padded_classes, DeviceKind device = DeviceKind::cpu);

}  // namespace zs
