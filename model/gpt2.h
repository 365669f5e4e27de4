#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/module.h"
#include "runtime/tensor/ops.h"
#include "runtime/tensor/recompute.h"

namespace zs {

/// What a block computes again in backward instead of keeping it. With C the width, a token's activations in a block are 16 C elements and
/// some statistics: the input and two sums (x, attended), two norms, qkv (3), attention's output, and the MLP before and after GELU (4
/// each).
enum class Recompute : std::uint8_t {
  none,       ///< nothing: all are kept
  attention,  ///< the first norm, qkv and attention's output (5 C, and the statistics): 11 C are kept
  block,      ///< all: the block's input (C) is kept
};

/// Sizes of a GPT-2 (Radford et al. 2019, section 2.3).
struct Gpt2Config {
  std::int64_t layers = 12, heads = 12, width = 768, context = 1024, vocab = 50257;
  GeluKind gelu = GeluKind::tanh;
  Recompute recompute = Recompute::none;

  /// The vocabulary as stored: rows up to a multiple of 128; logits of the extra ones are masked.
  std::int64_t padded_vocab() const { return (vocab + 127) / 128 * 128; }
};

/// One pre-norm transformer block: x + attention(norm(x)), then x + mlp(norm(x)).
class Gpt2Block : public Module {
 public:
  Gpt2Block(std::string path, const Gpt2Config& config);
  bool is_block() const override { return true; }
  /// (B, T, C) -> (B, T, C)
  Tensor forward(const Tensor& x);

 private:
  using Tensors = std::vector<Tensor>;
  /// last(body({x})), recomputed where the block recomputes this part.
  template <class Body, class Last>
  Tensor run(Recompute part, const Tensor& x, const Body& body, const Last& last);
  Tensor attention(const Tensor& x);

  std::int64_t heads_;
  GeluKind gelu_;
  Recompute recompute_;
  Parameter &norm1_weight_, &norm1_bias_, &qkv_weight_, &qkv_bias_, &out_weight_, &out_bias_;
  Parameter &norm2_weight_, &norm2_bias_, &up_weight_, &up_bias_, &down_weight_, &down_bias_;
};

/// GPT-2 as published: learned positions, pre-norm blocks, a final norm, the head tied to the token embedding; weights
/// normal with deviation 0.02 (positions 0.01), those that write to the residual stream scaled by 1 / sqrt(2 layers).
class Gpt2 : public Module {
 public:
  explicit Gpt2(const Gpt2Config& config);

  /// Scalar f32: mean cross entropy over the (B, T) tokens, in nats. ids and targets are i32. `options` as in lm_head_loss.
  Tensor loss(const Tensor& ids, const Tensor& targets, const LossOptions& options = {});
  /// (1, V') f32 logits of what follows token `position` of the one sequence ids (1, T). Without gradient.
  Tensor next_token_logits(const Tensor& ids, std::int64_t position);

  const Gpt2Config& config() const { return config_; }
  std::int64_t parameter_count() const;

 private:
  Tensor hidden(const Tensor& ids);

  Gpt2Config config_;
  Parameter &token_embedding_, &position_embedding_;
  std::vector<std::unique_ptr<Gpt2Block>> blocks_;
  Parameter &norm_weight_, &norm_bias_;
};

}  // namespace zs
