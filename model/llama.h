#pragma once

#include "model/language_model.h"

namespace zs {

/// Sizes of a Llama (Touvron et al. 2023, section 2.2). Query heads share keys and values in groups of heads / kv_heads neighbours.
struct LlamaConfig {
  std::int64_t layers = 4, heads = 4, kv_heads = 2, width = 128, hidden = 384, vocab = 32000;
  double rotary_base = 10000;
  bool is_tied = false;  ///< the head is the token embedding
};

/// RMS norms, rotary positions, grouped queries and an MLP of `hidden` gated elements (SwiGLU); no biases.
class LlamaBlock : public TransformerBlock {
 public:
  LlamaBlock(std::string path, const LlamaConfig& config);

 private:
  Tensor attend(const Tensor& x) override;
  Tensor project(const Tensor& attended) override;
  Tensor normalise(const Tensor& x) override;
  SumAndNorm add_and_normalise(const Tensor& x, const Tensor& attended) override;
  Tensor activate(const Tensor& normalised) override;
  Tensor contract(const Tensor& hidden) override;

  std::int64_t heads_, kv_heads_;
  double rotary_base_;
  Parameter &norm1_, &qkv_, &out_, &norm2_;
  Parameter &gate_up_, &down_;  // (2 hidden, C): the gate's rows, then those it multiplies; (C, hidden)
};

/// A Llama: pre-norm blocks, a final norm, a head of its own or the token embedding. Weights normal with deviation 0.02, those that
/// write to the residual stream scaled by 1 / sqrt(2 layers).
class Llama : public LanguageModel {
 public:
  explicit Llama(const LlamaConfig& config);

  std::int64_t working_parameter_count() const override;

 private:
  Tensor hidden(const Tensor& ids) override;
  Parameter& head() override { return head_ != nullptr ? *head_ : token_embedding_; }

  Parameter& token_embedding_;
  std::vector<std::unique_ptr<LlamaBlock>> blocks_;
  Parameter& norm_;
  Parameter* head_;  // null: tied
};

}  // namespace zs
