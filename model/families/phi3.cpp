#include <nlohmann/json.hpp>

#include "model/families/family.h"
#include "model/families/hf_config.h"
#include "model/families/rotary_decoder.h"

namespace zs {
namespace {

ModelConfig phi3_from_config(const HfConfig& config) {
  config.require("attention_bias", false);
  config.require("embd_pdrop", 0.0);
  config.require("resid_pdrop", 0.0);
  ModelConfig model = rotary_from_config(
      config, "phi3", {.hidden = 8192, .vocab = 32064, .context = 4096, .width = 3072, .norm_eps = 1e-5});
  model.window = window_of_layers(config, model.layers, config.integer("sliding_window", 0), 0);
  take_default_padding(config, model, 32000);
  return model;
}

/// Files have one tensor of queries, keys and values, and one of the gate and what it gates.
TensorMap phi3_tensor_map(const ModelConfig& model) {
  TensorMap map = rotary_tensor_map(model, false, false);
  const auto join = [](TensorRule& rule, const std::string& first, const std::string& all) {
    TensorPart part{rule.parts.front().tensor};
    part.tensor.replace(part.tensor.find(first), first.size(), all);
    rule.parts = {part};
  };
  for (TensorRule& rule : map.rules) {
    if (rule.parameter.ends_with(".attention.qkv.weight")) join(rule, "q_proj", "qkv_proj");
    if (rule.parameter.ends_with(".mlp.gate_up.weight")) join(rule, "gate_proj", "gate_up_proj");
  }
  return map;
}

}  // namespace

const Family& phi3_family() {
  static const Family family{
      .name = "phi3",
      .architecture = "Phi3ForCausalLM",
      .summary =
          "a `mistral` whose files have one tensor for queries, keys and values, and one for the gated MLP's first",
      .keys = rotary_decoder_keys({"model.window"}),
      .defaults = {.family = "phi3", .vocab = 32064, .tied_head = false},
      // Abdin et al. 2024 (Phi-3), mini, and Abdin et al. 2024 (Phi-4), as published.
      .presets = {{.family = "phi3",
                   .preset = "phi3-mini",
                   .layers = 32,
                   .heads = 32,
                   .width = 3072,
                   .context = 4096,
                   .vocab = 32064,
                   .kv_heads = 32,
                   .hidden = 8192,
                   .tied_head = false,
                   .window = 2047},
                  {.family = "phi3",
                   .preset = "phi-4",
                   .layers = 40,
                   .heads = 40,
                   .width = 5120,
                   .context = 16384,
                   .vocab = 100352,
                   .kv_heads = 10,
                   .hidden = 17920,
                   .rotary_base = 250000,
                   .tied_head = false}},
      .derive = derive_rotary_decoder,
      .make = [](const ModelConfig& model) -> std::unique_ptr<LanguageModel> {
        return std::make_unique<Transformer>(rotary_decoder(model));
      },
      .from_config = phi3_from_config,
      .to_config = [](const ModelConfig& model) { return rotary_to_config(model, "Phi3ForCausalLM"); },
      .tensor_map = phi3_tensor_map};
  return family;
}

}  // namespace zs
