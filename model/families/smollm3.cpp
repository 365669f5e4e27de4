#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/families/family.h"
#include "model/families/hf_config.h"
#include "model/families/rotary_decoder.h"

namespace zs {
namespace {

constexpr const char* kRotaryLayers = "no_rope_layers";  // by its name those without, but 1 is a layer with

std::unique_ptr<LanguageModel> make_smollm3(const ModelConfig& model) {
  TransformerOptions options = rotary_decoder(model);
  options.of_layer = [plain = model.no_rope_layers](std::int64_t layer, BlockOptions& block) {
    if (std::find(plain.begin(), plain.end(), layer) != plain.end()) block.attention.rotary.reset();
  };
  return std::make_unique<Transformer>(options);
}

/// The layers whose queries and keys are not turned: those that the list has 0 for, or each interval-th.
std::vector<std::int64_t> plain_layers(const HfConfig& config, std::int64_t layers) {
  const std::vector<std::int64_t> list = config.integers(kRotaryLayers);
  const std::int64_t interval = config.integer("no_rope_layer_interval", 4);
  if (!list.empty() && std::ssize(list) != layers) config.refuse(kRotaryLayers);
  std::vector<std::int64_t> plain;
  for (std::int64_t layer = 0; layer < std::min(layers, kMostLayers); ++layer)
    if (list.empty() ? (layer + 1) % interval == 0 : list[static_cast<std::size_t>(layer)] == 0) plain.push_back(layer);
  return plain;
}

ModelConfig smollm3_from_config(const HfConfig& config) {
  config.require("attention_bias", false);
  config.require("mlp_bias", false);
  ModelConfig model = rotary_from_config(config, "smollm3",
                                         {.vocab = 128256,
                                          .context = 32768,
                                          .kv_heads = 4,
                                          .layers = 36,
                                          .heads = 16,
                                          .width = 2048,
                                          .rotary_base = 2e6,
                                          .is_tied = true});
  config.require("use_sliding_window", false);
  window_of_layers(config, model.layers, 0, 0);
  model.no_rope_layers = plain_layers(config, model.layers);
  take_default_padding(config, model, 128004);
  return model;
}

nlohmann::ordered_json smollm3_to_config(const ModelConfig& model) {
  nlohmann::ordered_json config = rotary_to_config(model, "SmolLM3ForCausalLM");
  std::vector<int> is_turned(static_cast<std::size_t>(model.layers), 1);
  for (const std::int64_t layer : model.no_rope_layers) is_turned[static_cast<std::size_t>(layer)] = 0;
  config[kRotaryLayers] = is_turned;
  return config;
}

}  // namespace

const Family& smollm3_family() {
  static const Family family{
      .name = "smollm3",
      .architecture = "SmolLM3ForCausalLM",
      .summary = "a `llama` without positions in `model.no_rope_layers`",
      .keys = rotary_decoder_keys({"model.no_rope_layers"}),
      .settings = {kRotaryLayers},
      .defaults = {.family = "smollm3", .vocab = 128256, .rotary_base = 2e6, .norm_eps = 1e-6},
      // SmolLM3-3B (Hugging Face 2025), as published.
      .presets = {{.family = "smollm3",
                   .preset = "smollm3-3B",
                   .layers = 36,
                   .heads = 16,
                   .width = 2048,
                   .context = 65536,
                   .vocab = 128256,
                   .kv_heads = 4,
                   .hidden = 11008,
                   .rotary_base = 5e6,
                   .norm_eps = 1e-6,
                   .no_rope_layers = {3, 7, 11, 15, 19, 23, 27, 31, 35}}},
      .derive = derive_rotary_decoder,
      .make = make_smollm3,
      .from_config = smollm3_from_config,
      .to_config = smollm3_to_config,
      .tensor_map = [](const ModelConfig& model) { return rotary_tensor_map(model, false, false); }};
  return family;
}

}  // namespace zs
