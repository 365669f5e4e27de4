#include "model/gpt2.h"

namespace zs {
namespace {

constexpr float kPositionDeviation = 0.01f;

}  // namespace

Gpt2Block::Gpt2Block(std::string path, const Gpt2Config& config)
    : TransformerBlock(std::move(path)),
      heads_(config.heads),
      gelu_(config.gelu),
      norm1_weight_(add_parameter("norm1.weight", {config.width}, {.constant = 1}, false)),
      norm1_bias_(add_parameter("norm1.bias", {config.width}, {}, false)),
      qkv_weight_(add_parameter("attention.qkv.weight", {3 * config.width, config.width}, {.normal_std = kWeightDeviation}, true)),
      qkv_bias_(add_parameter("attention.qkv.bias", {3 * config.width}, {}, false)),
      out_weight_(add_parameter("attention.out.weight", {config.width, config.width}, residual_init(config.layers), true)),
      out_bias_(add_parameter("attention.out.bias", {config.width}, {}, false)),
      norm2_weight_(add_parameter("norm2.weight", {config.width}, {.constant = 1}, false)),
      norm2_bias_(add_parameter("norm2.bias", {config.width}, {}, false)),
      up_weight_(add_parameter("mlp.up.weight", {4 * config.width, config.width}, {.normal_std = kWeightDeviation}, true)),
      up_bias_(add_parameter("mlp.up.bias", {4 * config.width}, {}, false)),
      down_weight_(add_parameter("mlp.down.weight", {config.width, 4 * config.width}, residual_init(config.layers), true)),
      down_bias_(add_parameter("mlp.down.bias", {config.width}, {}, false)) {}

Tensor Gpt2Block::attend(const Tensor& x) {
  return causal_attention(linear(layer_norm(x, norm1_weight_, norm1_bias_), qkv_weight_, &qkv_bias_), heads_);
}

Tensor Gpt2Block::project(const Tensor& attended) { return linear(attended, out_weight_, &out_bias_); }

Tensor Gpt2Block::normalise(const Tensor& x) { return layer_norm(x, norm2_weight_, norm2_bias_); }

SumAndNorm Gpt2Block::add_and_normalise(const Tensor& x, const Tensor& attended) {
  return add_layer_norm(x, attended, norm2_weight_, norm2_bias_);
}

Tensor Gpt2Block::activate(const Tensor& normalised) { return linear_gelu(normalised, up_weight_, &up_bias_, gelu_); }

Tensor Gpt2Block::contract(const Tensor& hidden) { return linear(hidden, down_weight_, &down_bias_); }

Gpt2::Gpt2(const Gpt2Config& config)
    : LanguageModel(config.vocab),
      token_embedding_(
          add_parameter("token_embedding.weight", {padded_vocab(config.vocab), config.width}, {.normal_std = kWeightDeviation}, true)),
      position_embedding_(
          add_parameter("position_embedding.weight", {config.context, config.width}, {.normal_std = kPositionDeviation}, true)),
      norm_weight_(add_parameter("norm.weight", {config.width}, {.constant = 1}, false)),
      norm_bias_(add_parameter("norm.bias", {config.width}, {}, false)) {
  ZS_CHECK(config.width % config.heads == 0, "width {} is not a multiple of {} heads", config.width, config.heads);
  for (std::int64_t i = 0; i < config.layers; ++i) {
    blocks_.push_back(std::make_unique<Gpt2Block>(fmt::format("blocks.{}", i), config));
    add_child(*blocks_.back());
  }
}

Tensor Gpt2::hidden(const Tensor& ids) {
  Tensor x = output(embedding(ids, token_embedding_, &position_embedding_));
  for (const auto& block : blocks_) x = block->forward(x);
  return layer_norm(input(x), norm_weight_, norm_bias_);
}

}  // namespace zs
