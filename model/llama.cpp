#include "model/llama.h"

namespace zs {

LlamaBlock::LlamaBlock(std::string path, const LlamaConfig& config)
    : TransformerBlock(std::move(path)),
      heads_(config.heads),
      kv_heads_(config.kv_heads),
      rotary_base_(config.rotary_base),
      norm1_(add_parameter("norm1.weight", {config.width}, {.constant = 1}, false)),
      qkv_(add_parameter("attention.qkv.weight", {(config.heads + 2 * config.kv_heads) * (config.width / config.heads), config.width},
                         {.normal_std = kWeightDeviation}, true)),
      out_(add_parameter("attention.out.weight", {config.width, config.width}, residual_init(config.layers), true)),
      norm2_(add_parameter("norm2.weight", {config.width}, {.constant = 1}, false)),
      gate_up_(add_parameter("mlp.gate_up.weight", {2 * config.hidden, config.width}, {.normal_std = kWeightDeviation}, true)),
      down_(add_parameter("mlp.down.weight", {config.width, config.hidden}, residual_init(config.layers), true)) {}

Tensor LlamaBlock::attend(const Tensor& x) {
  const Tensor qkv = rotary(linear(rms_norm(x, norm1_), qkv_, nullptr), heads_, kv_heads_, {.base = rotary_base_});
  return causal_attention(qkv, heads_, kv_heads_);
}

Tensor LlamaBlock::project(const Tensor& attended) { return linear(attended, out_, nullptr); }

Tensor LlamaBlock::normalise(const Tensor& x) { return rms_norm(x, norm2_); }

SumAndNorm LlamaBlock::add_and_normalise(const Tensor& x, const Tensor& attended) { return add_rms_norm(x, attended, norm2_); }

Tensor LlamaBlock::activate(const Tensor& normalised) { return swiglu(linear(normalised, gate_up_, nullptr)); }

Tensor LlamaBlock::contract(const Tensor& hidden) { return linear(hidden, down_, nullptr); }

Llama::Llama(const LlamaConfig& config)
    : LanguageModel(config.vocab),
      token_embedding_(
          add_parameter("token_embedding.weight", {padded_vocab(config.vocab), config.width}, {.normal_std = kWeightDeviation}, true)),
      norm_(add_parameter("norm.weight", {config.width}, {.constant = 1}, false)),
      head_(config.is_tied
                ? nullptr
                : &add_parameter("head.weight", {padded_vocab(config.vocab), config.width}, {.normal_std = kWeightDeviation}, true)) {
  ZS_CHECK(config.width % (2 * config.heads) == 0 && config.kv_heads > 0 && config.heads % config.kv_heads == 0,
           "width {}, {} heads, {} of keys", config.width, config.heads, config.kv_heads);
  for (std::int64_t i = 0; i < config.layers; ++i) {
    blocks_.push_back(std::make_unique<LlamaBlock>(fmt::format("blocks.{}", i), config));
    add_child(*blocks_.back());
  }
}

std::int64_t Llama::working_parameter_count() const { return parameter_count() - (head_ != nullptr ? token_embedding_.numel() : 0); }

Tensor Llama::hidden(const Tensor& ids) {
  Tensor x = output(embedding(ids, token_embedding_, nullptr));
  for (const auto& block : blocks_) x = block->forward(x);
  return rms_norm(input(x), norm_);
}

}  // namespace zs
