#include "model/nn/transformer.h"

#include <cmath>

namespace zs {
namespace {

constexpr float kPositionDeviation = 0.01f;

BlockOptions with_residual_init(BlockOptions block, std::int64_t layers) {
  const Init init{.normal_std = kWeightDeviation / std::sqrt(2.0f * static_cast<float>(layers))};
  block.attention.out_init = block.mlp.down_init = init;
  if (block.mixture) block.mixture->experts.down_init = init;
  return block;
}

}  // namespace

Transformer::Transformer(const TransformerOptions& options)
    : LanguageModel(options.vocab),
      token_embedding_(make_child<Embedding>("token_embedding", padded_vocab(options.vocab),
                                             options.block.attention.width, Init{.normal_std = kWeightDeviation},
                                             options.padding)),
      position_embedding_(options.positions > 0 ? &make_child<Embedding>("position_embedding", options.positions,
                                                                         options.block.attention.width,
                                                                         Init{.normal_std = kPositionDeviation})
                                                : nullptr),
      embedding_scale_(options.embedding_scale),
      dropout_(make_child<Dropout>("dropout", options.embedding_dropout)),
      norm_(own_child(
          make_norm(options.block.norm, path_of("norm"), options.block.attention.width, options.block.norm_eps))),
      head_(options.is_tied ? nullptr
                            : &make_child<Linear>("head", options.block.attention.width, padded_vocab(options.vocab),
                                                  LinearOptions{.has_bias = false})),
      blocks_(make_child<ModuleList<TransformerBlock>>("blocks")) {
  token_embedding_.weight().set_matrix_rows({options.vocab});
  if (head_ != nullptr) head_->weight().set_matrix_rows({options.vocab});
  const BlockOptions block = with_residual_init(options.block, options.layers);
  for (std::int64_t i = 0; i < options.layers; ++i) {
    BlockOptions own = block;
    if (options.of_layer) options.of_layer(i, own);
    blocks_.add(own);
  }
}

std::int64_t Transformer::working_parameter_count() const {
  const Parameter& embedding = token_embedding_.weight();
  std::int64_t count = parameter_count();
  if (head_ != nullptr) count -= embedding.part().whole_of(embedding.shape()).numel();
  for (const TransformerBlock* block : blocks_) count -= block->idle_parameter_count();
  return count;
}

Tensor Transformer::hidden(const Tensor& ids) {
  Tensor x = token_embedding_(ids, position_embedding_, first_position(), documents());
  if (embedding_scale_ != 1)
    x = x * (x.dtype() == DType::bf16 ? static_cast<float>(BFloat16(embedding_scale_)) : embedding_scale_);
  x = dropout_(x);
  for (TransformerBlock* block : blocks_) x = (*block)(x, documents());
  return norm_(x);
}

}  // namespace zs
