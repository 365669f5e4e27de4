#include "model/gpt2.h"

#include <cmath>
#include <functional>

namespace zs {
namespace {

constexpr float kDeviation = 0.02f, kPositionDeviation = 0.01f;

Init residual_init(const Gpt2Config& config) { return {.normal_std = kDeviation / std::sqrt(2.0f * static_cast<float>(config.layers))}; }

}  // namespace

Gpt2Block::Gpt2Block(std::string path, const Gpt2Config& config)
    : Module(std::move(path)),
      heads_(config.heads),
      gelu_(config.gelu),
      recompute_(config.recompute),
      norm1_weight_(add_parameter("norm1.weight", {config.width}, {.constant = 1}, false)),
      norm1_bias_(add_parameter("norm1.bias", {config.width}, {}, false)),
      qkv_weight_(add_parameter("attention.qkv.weight", {3 * config.width, config.width}, {.normal_std = kDeviation}, true)),
      qkv_bias_(add_parameter("attention.qkv.bias", {3 * config.width}, {}, false)),
      out_weight_(add_parameter("attention.out.weight", {config.width, config.width}, residual_init(config), true)),
      out_bias_(add_parameter("attention.out.bias", {config.width}, {}, false)),
      norm2_weight_(add_parameter("norm2.weight", {config.width}, {.constant = 1}, false)),
      norm2_bias_(add_parameter("norm2.bias", {config.width}, {}, false)),
      up_weight_(add_parameter("mlp.up.weight", {4 * config.width, config.width}, {.normal_std = kDeviation}, true)),
      up_bias_(add_parameter("mlp.up.bias", {4 * config.width}, {}, false)),
      down_weight_(add_parameter("mlp.down.weight", {config.width, 4 * config.width}, residual_init(config), true)),
      down_bias_(add_parameter("mlp.down.bias", {config.width}, {}, false)) {}

template <class Body, class Last>
Tensor Gpt2Block::run(Recompute part, const Tensor& x, const Body& body, const Last& last) {
  return recompute_ == part ? recompute({x}, body, last) : last(body({x}));
}

Tensor Gpt2Block::attention(const Tensor& x) {
  const auto attend = [this](const Tensors& in) {
    return Tensors{causal_attention(linear(layer_norm(input(in[0]), norm1_weight_, norm1_bias_), qkv_weight_, &qkv_bias_), heads_)};
  };
  return run(Recompute::attention, x, attend, [this](const Tensors& in) { return linear(in[0], out_weight_, &out_bias_); });
}

Tensor Gpt2Block::forward(const Tensor& x) {
  const ForwardScope scope = enter();
  const auto up_to_gelu = [this](const Tensors& in) {
    const Tensor attended = add(in[0], output(attention(in[0])));
    const Tensor up = linear(layer_norm(input(attended), norm2_weight_, norm2_bias_), up_weight_, &up_bias_);
    return Tensors{attended, gelu(up, gelu_)};
  };
  return run(Recompute::block, x, up_to_gelu,
             [this](const Tensors& in) { return add(in[0], output(linear(in[1], down_weight_, &down_bias_))); });
}

Gpt2::Gpt2(const Gpt2Config& config)
    : Module(""),
      config_(config),
      token_embedding_(add_parameter("token_embedding.weight", {config.padded_vocab(), config.width}, {.normal_std = kDeviation}, true)),
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

Tensor Gpt2::loss(const Tensor& ids, const Tensor& targets, const LossOptions& options) {
  const ForwardScope scope = enter();
  return lm_head_loss(hidden(ids), token_embedding_, targets, config_.vocab, options);
}

Tensor Gpt2::next_token_logits(const Tensor& ids, std::int64_t position) {
  const ForwardScope scope = enter();
  const NoGradGuard no_grad(ids.context());
  const Tensor x = hidden(ids);
  return lm_head_logits(x.reshape({ids.numel(), config_.width}).rows(position, 1), token_embedding_);
}

std::int64_t Gpt2::parameter_count() const {
  std::int64_t count = 0;
  const std::function<void(const Module&)> visit = [&](const Module& module) {
    for (const auto& parameter : module.own_parameters()) count += parameter->numel();
    for (const Module* child : module.children()) visit(*child);
  };
  visit(*this);
  return count;
}

}  // namespace zs
