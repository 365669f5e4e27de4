#include <nlohmann/json.hpp>

#include "model/families/family.h"
#include "model/families/hf_config.h"
#include "model/families/rotary_decoder.h"

namespace zs {

namespace {

ModelConfig mistral_from_config(const HfConfig& config) {
  ModelConfig model = rotary_from_config(config, "mistral", {.hidden = 14336, .context = 131072, .kv_heads = 8});
  // Absent it is not null, which is no window.
  const std::int64_t window = config.document().contains("sliding_window") ? config.integer("sliding_window", 0) : 4096;
  model.window = window_of_layers(config, model.layers, window, 0);
  return model;
}

}  // namespace

const Family& mistral_family() {
  static const Family family{
      .name = "mistral",
      .architecture = "MistralForCausalLM",
      .summary = "a `llama` whose tokens see only those before them in a window (`model.window`)",
      .keys = rotary_decoder_keys({"model.window"}),
      .defaults = {.family = "mistral", .vocab = 32000, .tied_head = false},
      // Jiang et al. 2023 (Mistral 7B), table 1.
      .presets = {{.family = "mistral",
                   .preset = "mistral-7B",
                   .layers = 32,
                   .heads = 32,
                   .width = 4096,
                   .context = 32768,
                   .vocab = 32000,
                   .kv_heads = 8,
                   .hidden = 14336,
                   .tied_head = false,
                   .window = 4096}},
      .derive = derive_rotary_decoder,
      .make = [](const ModelConfig& model) -> std::unique_ptr<LanguageModel> {
        return std::make_unique<Transformer>(rotary_decoder(model));
      },
      .from_config = mistral_from_config,
      .to_config = [](const ModelConfig& model) { return rotary_to_config(model, "MistralForCausalLM"); },
      .tensor_map = [](const ModelConfig& model) { return rotary_tensor_map(model, false, false); },
      .gguf = {"llama", true}};
  return family;
}

}  // namespace zs
