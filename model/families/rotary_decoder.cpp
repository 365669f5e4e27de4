#include "model/families/rotary_decoder.h"

#include <nlohmann/json.hpp>

namespace zs {
namespace {

RotaryScaling scaling_of(const ModelConfig& model) {
  if (model.rotary_scaling == "none") return {};
  RotaryScaling scaling{.factor = model.rotary_factor};
  if (model.rotary_scaling == "linear") return scaling;
  scaling.low = model.rotary_low;
  scaling.high = model.rotary_high;
  scaling.context = model.rotary_context;
  return scaling;
}

}  // namespace

TransformerOptions rotary_decoder(const ModelConfig& model) {
  const auto eps = static_cast<float>(model.norm_eps);
  return {
      .vocab = model.vocab,
      .layers = model.layers,
      .is_tied = model.tied_head,
      .padding = model.pad_token_id,
      .block = {
          .norm = NormKind::rms,
          .norm_eps = eps,
          .attention = {.width = model.width,
                        .heads = model.heads,
                        .kv_heads = model.kv_heads,
                        .head_dim = model.head_dim,
                        .window = model.window,
                        .has_qkv_bias = false,
                        .has_bias = false,
                        .rotary = RotaryOptions{.base = model.rotary_base, .scaling = scaling_of(model)}},
          .mlp = {.width = model.width, .hidden = model.hidden, .activation = Activation::swiglu, .has_bias = false}}};
}

void derive_rotary_decoder(ModelConfig& model) {
  constexpr std::int64_t kMultiple = 128;
  if (model.kv_heads == 0) model.kv_heads = model.heads;
  if (model.hidden == 0) model.hidden = (8 * model.width + 3 * kMultiple - 1) / (3 * kMultiple) * kMultiple;
}

void take_default_padding(const HfConfig& config, ModelConfig& model, std::int64_t token) {
  constexpr const char* kKey = "pad_token_id";
  if (config.document().contains(kKey)) return;
  if (token >= model.vocab) config.refuse(kKey);
  model.pad_token_id = token;
}

std::vector<std::string_view> rotary_decoder_keys(std::vector<std::string_view> more) {
  std::vector<std::string_view> keys = {
      "model.kv_heads",      "model.hidden",     "model.head_dim",    "model.rotary_base",    "model.rotary_scaling",
      "model.rotary_factor", "model.rotary_low", "model.rotary_high", "model.rotary_context", "model.pad_token_id"};
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

}  // namespace zs
