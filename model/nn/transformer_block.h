#pragma once

#include <optional>
#include <vector>

#include "model/nn/attention.h"
#include "model/nn/experts.h"
#include "model/nn/norm.h"
#include "runtime/tensor/recompute.h"

namespace zs {

/// Activations that a block computes again in backward instead of keeping them. With C the width, a token's activations
/// in a block of GPT-2 are 16 C elements and some statistics: the input and a sum (x, attention), two norms, qkv (3),
/// attention's output, and the MLP before and after GELU (4 each).
enum class Recompute : std::uint8_t {
  none,       ///< nothing: all are kept
  attention,  ///< the first norm, qkv and attention's output (of GPT-2 5 C, and the statistics): the rest is kept
  block,      ///< all: the block's input (C) is kept
};

/// Places of a block's norms: before attention and before the feed-forward part, of what these add, or both.
enum class NormPlace : std::uint8_t { input, output, both };

/// Options of TransformerBlock.
struct BlockOptions {
  NormKind norm = NormKind::layer;
  float norm_eps = 1e-5f;
  AttentionOptions attention;
  MlpOptions mlp;
  std::optional<MixtureOptions> mixture = {};  ///< instead of the MLP
  NormPlace norms = NormPlace::input;
  /// Share that is dropped of what attention and the feed-forward part add to the residual stream, in training
  float residual_dropout = 0;
};

/// A pre-norm transformer block: x + attention(norm1(x)), then x + mlp(norm2(x)); or, by options, x +
/// norm1(attention(x)), then x + norm2(mlp(x)); or both, with "output_norm1" and "output_norm2" of what is added.
class TransformerBlock : public Layer<TransformerBlock> {
 public:
  TransformerBlock(std::string path, const BlockOptions& options);

  bool is_block() const override { return true; }
  /// (B, T, C) -> (B, T, C)
  Tensor forward(const Tensor& x, const Documents& documents = {});
  void set_recompute(Recompute recompute) { recompute_ = recompute; }
  /// Sets the keeper, which has the block's input until backward where all of the block is recomputed; null: it stays.
  void set_input_keeper(InputKeeper* keeper) { keeper_ = keeper; }
  /// Number of elements of parameters that a token does not meet: of experts that it has not chosen.
  std::int64_t idle_parameter_count() const;
  /// Makes the place for adapters of the block's products. Called once, before the model is sharded.
  LoraAdapters& make_adapters();

 private:
  Norm* find_output_norm(const char* name, const BlockOptions& options, Norm& own);
  /// last(body({x})), recomputed where the block recomputes this part.
  Tensor run(Recompute part, const Tensor& x, const TensorsFunction& body, const TensorFunction& last);
  Tensor attention(const Tensor& x, const Documents& documents);

  Norm& norm1_;
  Attention& attention_;
  Norm& norm2_;
  FeedForward& mlp_;
  const NormPlace norms_;
  Norm *output_norm1_, *output_norm2_;  // null: what is added is not normalised
  Dropout &attention_dropout_, &mlp_dropout_;
  LoraAdapters* adapters_ = nullptr;  // null: none
  Recompute recompute_ = Recompute::none;
  InputKeeper* keeper_ = nullptr;
};

}  // namespace zs
