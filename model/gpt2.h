#pragma once

#include "model/language_model.h"

namespace zs {

/// Sizes of a GPT-2 (Radford et al. 2019, section 2.3).
struct Gpt2Config {
  std::int64_t layers = 12, heads = 12, width = 768, context = 1024, vocab = 50257;
  GeluKind gelu = GeluKind::tanh;
};

/// Norms with biases, and an MLP of four times the width with GELU.
class Gpt2Block : public TransformerBlock {
 public:
  Gpt2Block(std::string path, const Gpt2Config& config);

 private:
  Tensor attend(const Tensor& x) override;
  Tensor project(const Tensor& attended) override;
  Tensor normalise(const Tensor& x) override;
  SumAndNorm add_and_normalise(const Tensor& x, const Tensor& attended) override;
  Tensor activate(const Tensor& normalised) override;
  Tensor contract(const Tensor& hidden) override;

  std::int64_t heads_;
  GeluKind gelu_;
  Parameter &norm1_weight_, &norm1_bias_, &qkv_weight_, &qkv_bias_, &out_weight_, &out_bias_;
  Parameter &norm2_weight_, &norm2_bias_, &up_weight_, &up_bias_, &down_weight_, &down_bias_;
};

/// GPT-2 as published: learned positions, pre-norm blocks, a final norm, the head tied to the token embedding; weights
/// normal with deviation 0.02 (positions 0.01), those that write to the residual stream scaled by 1 / sqrt(2 layers).
class Gpt2 : public LanguageModel {
 public:
  explicit Gpt2(const Gpt2Config& config);

 private:
  Tensor hidden(const Tensor& ids) override;
  Parameter& head() override { return token_embedding_; }

  Parameter &token_embedding_, &position_embedding_;
  std::vector<std::unique_ptr<Gpt2Block>> blocks_;
  Parameter &norm_weight_, &norm_bias_;
};

}  // namespace zs
