#pragma once

#include <functional>

#include "model/nn/embedding.h"
#include "model/nn/language_model.h"
#include "model/nn/module_list.h"

namespace zs {

/// Options of Transformer.
struct TransformerOptions {
  std::int64_t vocab = 0, layers = 0;
  std::int64_t positions = 0;  ///< rows of learned positions, which are added to the tokens' embedding; 0: none
  bool is_tied = true;         ///< the head is the token embedding
  float embedding_scale = 1;   ///< factor of the embeddings, rounded to their dtype
  std::int64_t padding = -1;   ///< padding id of the token embedding: see Embedding
  BlockOptions block;          ///< its sizes are the model's
  /// Changes what layers have of their own; none: all are alike.
  std::function<void(std::int64_t layer, BlockOptions& block)> of_layer = {};
  float embedding_dropout = 0;  ///< share of the embeddings' sum that is dropped, in training
};

/// A decoder of pre-norm blocks with a norm after them, then the head: what GPT-2 and Llama are kinds of. Weights are
/// normal with deviation 0.02 (positions 0.01), those that write to the residual stream scaled by 1 / sqrt(2 layers),
/// as GPT-2's are.
class Transformer : public LanguageModel {
 public:
  explicit Transformer(const TransformerOptions& options);

  std::int64_t working_parameter_count() const override;
  /// True if the head is the token embedding.
  bool is_tied() const { return head_ == nullptr; }

 private:
  Tensor hidden(const Tensor& ids) override;
  Parameter& head() override { return head_ != nullptr ? head_->weight() : token_embedding_.weight(); }
  Module& head_module() override {
    if (head_ != nullptr) return *head_;
    return token_embedding_;
  }

  Embedding& token_embedding_;
  Embedding* position_embedding_;  // null: none
  const float embedding_scale_;
  Dropout& dropout_;
  Norm& norm_;
  Linear* head_;  // null: tied
  ModuleList<TransformerBlock>& blocks_;
};

}  // namespace zs
