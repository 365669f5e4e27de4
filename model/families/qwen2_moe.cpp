#include <nlohmann/json.hpp>

#include "model/families/family.h"
#include "model/families/mixture.h"
#include "model/families/rotary_decoder.h"

namespace zs {
namespace {

std::unique_ptr<LanguageModel> make_qwen2_moe(const ModelConfig& model) {
  TransformerOptions options = rotary_decoder(model);
  options.block.attention.has_qkv_bias = true;
  set_experts(options, model);
  return std::make_unique<Transformer>(options);
}

ModelConfig qwen2_moe_from_config(const HfConfig& config) {
  config.require("qkv_bias", true);
  ModelConfig model = rotary_from_config(
      config, "qwen2_moe",
      {.hidden = 5632, .vocab = 151936, .context = 32768, .kv_heads = 16, .layers = 24, .heads = 16, .width = 2048});
  take_experts(config, model, {.experts = 60, .experts_per_token = 4});
  take_sparse_layers(config, model, 1408);
  model.shared_expert_hidden = config.integer("shared_expert_intermediate_size", 5632);
  config.require("use_sliding_window", false);  // else every other layer would have one
  window_of_layers(config, model.layers, 0, 0);
  return model;
}

nlohmann::ordered_json qwen2_moe_to_config(const ModelConfig& model) {
  nlohmann::ordered_json config = rotary_to_config(model, "Qwen2MoeForCausalLM");
  add_experts(config, model, "num_experts");
  add_sparse_layers(config, model);
  config["shared_expert_intermediate_size"] = model.shared_expert_hidden;
  return config;
}

}  // namespace

const Family& qwen2_moe_family() {
  static const Family family{
      .name = "qwen2_moe",
      .architecture = "Qwen2MoeForCausalLM",
      .summary =
          "a `qwen2` whose MLPs are mixtures, but in `model.dense_layers`, beside an expert that all tokens "
          "have, times the sigmoid of a gate (`model.shared_expert_hidden`)",
      .keys =
          mixture_keys({"model.expert_hidden", "model.shared_expert_hidden", "model.norm_topk", "model.dense_layers"}),
      .settings = mixture_settings(),
      .defaults = {.family = "qwen2_moe",
                   .vocab = 151936,
                   .rotary_base = 1e6,
                   .tied_head = false,
                   .norm_eps = 1e-6,
                   .experts = 60,
                   .experts_per_token = 4,
                   .norm_topk = false},
      // Qwen1.5-MoE (Qwen team 2024), as published.
      .presets = {{.family = "qwen2_moe",
                   .preset = "qwen1.5-MoE-A2.7B",
                   .layers = 24,
                   .heads = 16,
                   .width = 2048,
                   .context = 8192,
                   .vocab = 151936,
                   .kv_heads = 16,
                   .hidden = 5632,
                   .rotary_base = 1e6,
                   .tied_head = false,
                   .norm_eps = 1e-6,
                   .experts = 60,
                   .experts_per_token = 4,
                   .expert_hidden = 1408,
                   .shared_expert_hidden = 5632,
                   .norm_topk = false}},
      .derive = derive_rotary_decoder,
      .make = make_qwen2_moe,
      .from_config = qwen2_moe_from_config,
      .to_config = qwen2_moe_to_config,
      .tensor_map =
          [](const ModelConfig& model) {
            return with_experts(rotary_tensor_map(model, true, false), model, qwen_mixture_names());
          },
      .gguf = {.architecture = "qwen2moe", .difference = [](const ModelConfig& model) {
                 return model.norm_topk ? "model.norm_topk is true" : nullptr;
               }}};
  return family;
}

}  // namespace zs
