#include <nlohmann/json.hpp>

#include "model/families/family.h"
#include "model/families/hf_config.h"
#include "model/families/rotary_decoder.h"

namespace zs {
namespace {

ModelConfig llama_preset(ModelConfig sizes) {
  sizes.family = "llama";
  return sizes;
}

// Zhang et al. 2024 (TinyLlama), table 1; Touvron et al. 2023 (Llama 2), 7B; Grattafiori et al. 2024 (Llama 3), table
// 3; Llama 3.2 as published. The tiny one is ours.
std::vector<ModelConfig> llama_presets() {
  return {llama_preset({.preset = "llama-tiny",
                        .layers = 4,
                        .heads = 4,
                        .width = 128,
                        .context = 256,
                        .vocab = 32000,
                        .kv_heads = 2,
                        .hidden = 384,
                        .tied_head = false}),
          llama_preset({.preset = "llama-1.1B",
                        .layers = 22,
                        .heads = 32,
                        .width = 2048,
                        .context = 2048,
                        .vocab = 32000,
                        .kv_heads = 4,
                        .hidden = 5632,
                        .tied_head = false}),
          llama_preset({.preset = "llama-7B",
                        .layers = 32,
                        .heads = 32,
                        .width = 4096,
                        .context = 4096,
                        .vocab = 32000,
                        .kv_heads = 32,
                        .hidden = 11008,
                        .tied_head = false}),
          llama_preset({.preset = "llama-8B",
                        .layers = 32,
                        .heads = 32,
                        .width = 4096,
                        .context = 8192,
                        .vocab = 128256,
                        .kv_heads = 8,
                        .hidden = 14336,
                        .rotary_base = 500000,
                        .tied_head = false}),
          llama_preset({.preset = "llama-3.2-1B",
                        .layers = 16,
                        .heads = 32,
                        .width = 2048,
                        .context = 131072,
                        .vocab = 128256,
                        .kv_heads = 8,
                        .hidden = 8192,
                        .rotary_base = 500000,
                        .rotary_scaling = "llama3",
                        .rotary_factor = 32})};
}

ModelConfig llama_from_config(const HfConfig& config) {
  config.require("attention_bias", false);
  config.require("mlp_bias", false);
  ModelConfig model = rotary_from_config(config, "llama", {});
  window_of_layers(config, model.layers, 0, 0);  // none has one
  return model;
}

}  // namespace

const Family& llama_family() {
  static const Family family{
      .name = "llama",
      .architecture = "LlamaForCausalLM",
      .summary =
          "RMS norms, rotary positions, query heads that share keys (`model.kv_heads`), a gated MLP (SwiGLU), no "
          "biases",
      .keys = rotary_decoder_keys(),
      .defaults = {.family = "llama", .vocab = 32000, .tied_head = false},
      .presets = llama_presets(),
      .derive = derive_rotary_decoder,
      .make = [](const ModelConfig& model) -> std::unique_ptr<LanguageModel> {
        return std::make_unique<Transformer>(rotary_decoder(model));
      },
      .from_config = llama_from_config,
      .to_config = [](const ModelConfig& model) { return rotary_to_config(model, "LlamaForCausalLM"); },
      .tensor_map = [](const ModelConfig& model) { return rotary_tensor_map(model, false, false); },
      .gguf = {"llama", true}};
  return family;
}

}  // namespace zs
