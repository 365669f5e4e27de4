#include "model/families/rotary_decoder.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace zs {
namespace {

using nlohmann::json;

constexpr const char* kTypes = "layer_types";
constexpr double kTwoPi = 6.28318530717958647692;

/// Pair that turns so many times in the context of the first training (Peng et al. 2023, YaRN).
double pair_of_turns(const ModelConfig& model, double turns) {
  const std::int64_t head_dim = model.head_dim > 0 ? model.head_dim : model.width / model.heads;
  return static_cast<double>(head_dim) * std::log(static_cast<double>(model.rotary_context) / (turns * kTwoPi)) /
         (2 * std::log(model.rotary_base));
}

}  // namespace

RotaryScaling rotary_scaling_of(const ModelConfig& model) {
  if (model.rotary_scaling == "none") return {};
  RotaryScaling scaling{.factor = model.rotary_factor};
  if (model.rotary_scaling == "yarn") {
    const double first = pair_of_turns(model, model.rotary_high), last = pair_of_turns(model, model.rotary_low);
    const std::int64_t head_dim = model.head_dim > 0 ? model.head_dim : model.width / model.heads;
    scaling.first = std::max(0.0, model.rotary_truncate ? std::floor(first) : first);
    scaling.last = std::min(static_cast<double>(head_dim - 1), model.rotary_truncate ? std::ceil(last) : last);
    scaling.amplitude = static_cast<float>(1 + 0.1 * std::log(model.rotary_factor));
  } else if (model.rotary_scaling == "llama3") {
    scaling.low = model.rotary_low;
    scaling.high = model.rotary_high;
    scaling.context = model.rotary_context;
  }
  return scaling;
}

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
                        .rotary = RotaryOptions{.base = model.rotary_base, .scaling = rotary_scaling_of(model)}},
          .mlp = {.width = model.width, .hidden = model.hidden, .activation = Activation::swiglu, .has_bias = false}}};
}

void derive_rotary_decoder(ModelConfig& model) {
  constexpr std::int64_t kMultiple = 128;
  if (model.kv_heads == 0) model.kv_heads = model.heads;
  if (model.hidden == 0) model.hidden = (8 * model.width + 3 * kMultiple - 1) / (3 * kMultiple) * kMultiple;
}

void take_global_layers(const HfConfig& config, ModelConfig& model, const GlobalDefaults& defaults) {
  const json* const types = config.has(kTypes) ? &config.document().at(kTypes) : nullptr;
  if (types != nullptr && (!types->is_array() || std::ssize(*types) != model.layers)) config.refuse(kTypes);
  for (std::int64_t layer = 0; layer < std::min(model.layers, kMostLayers); ++layer) {
    const json type = types == nullptr ? json((layer + 1) % defaults.every == 0 ? kFullLayer : kSlidingLayer)
                                       : types->at(static_cast<std::size_t>(layer));
    if (type != kFullLayer && type != kSlidingLayer) config.refuse(kTypes);
    if (type == kFullLayer) model.global_layers.push_back(layer);
  }
  if (std::ssize(model.global_layers) < model.layers) model.window = config.integer("sliding_window", defaults.window);
}

void add_layer_types(nlohmann::ordered_json& config, const ModelConfig& model) {
  config[kTypes] = json::array();
  for (std::int64_t layer = 0; layer < model.layers; ++layer)
    config[kTypes].push_back(is_global(model, layer) || model.window == 0 ? kFullLayer : kSlidingLayer);
}

bool is_global(const ModelConfig& model, std::int64_t layer) {
  return std::find(model.global_layers.begin(), model.global_layers.end(), layer) != model.global_layers.end();
}

void take_default_padding(const HfConfig& config, ModelConfig& model, std::int64_t token) {
  constexpr const char* kKey = "pad_token_id";
  if (config.document().contains(kKey)) return;
  if (token >= model.vocab) config.refuse(kKey);
  model.pad_token_id = token;
}

std::vector<std::string_view> rotary_decoder_keys(std::vector<std::string_view> more) {
  std::vector<std::string_view> keys = {"model.kv_heads",        "model.hidden",         "model.head_dim",
                                        "model.rotary_base",     "model.rotary_scaling", "model.rotary_factor",
                                        "model.rotary_low",      "model.rotary_high",    "model.rotary_context",
                                        "model.rotary_truncate", "model.pad_token_id"};
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

}  // namespace zs
