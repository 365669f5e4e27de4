#include <nlohmann/json.hpp>

#include "model/families/family.h"
#include "model/families/mixture.h"
#include "model/families/rotary_decoder.h"

namespace zs {
namespace {

std::unique_ptr<LanguageModel> make_qwen3_moe(const ModelConfig& model) {
  TransformerOptions options = rotary_decoder(model);
  options.block.attention.qk_norm_eps = static_cast<float>(model.norm_eps);
  set_experts(options, model);
  return std::make_unique<Transformer>(options);
}

ModelConfig qwen3_moe_from_config(const HfConfig& config) {
  config.require("attention_bias", false);
  ModelConfig model = rotary_from_config(
      config, "qwen3_moe",
      {.hidden = 6144, .vocab = 151936, .context = 32768, .kv_heads = 4, .layers = 24, .width = 2048});
  take_experts(config, model, {.experts = 128, .experts_per_token = 8});
  take_sparse_layers(config, model, 768);
  std::int64_t window = 0;  // max_window_layers has no effect here
  if (config.boolean("use_sliding_window", false))
    window = config.document().contains("sliding_window") ? config.integer("sliding_window", 0) : 4096;
  model.window = window_of_layers(config, model.layers, window, 0);
  return model;
}

nlohmann::ordered_json qwen3_moe_to_config(const ModelConfig& model) {
  nlohmann::ordered_json config = rotary_to_config(model, "Qwen3MoeForCausalLM");
  add_experts(config, model, "num_experts");
  add_sparse_layers(config, model);
  return config;
}

const char* qwen3_moe_difference(const ModelConfig& model) {
  if (model.window > 0) return "it has a window";
  if (!model.dense_layers.empty()) return "some of its layers are no mixtures";
  return model.norm_topk ? nullptr : "model.norm_topk is false";
}

}  // namespace

const Family& qwen3_moe_family() {
  static const Family family{
      .name = "qwen3_moe",
      .architecture = "Qwen3MoeForCausalLM",
      .summary = "a `qwen3` whose MLPs are mixtures, but in `model.dense_layers`",
      .keys = mixture_keys({"model.window", "model.expert_hidden", "model.norm_topk", "model.dense_layers"}),
      .settings = mixture_settings(),
      .defaults = {.family = "qwen3_moe",
                   .vocab = 151936,
                   .rotary_base = 1e6,
                   .tied_head = false,
                   .head_dim = 128,
                   .norm_eps = 1e-6,
                   .experts = 128,
                   .experts_per_token = 8},
      // Yang et al. 2025 (Qwen3), table 2.
      .presets = {{.family = "qwen3_moe",
                   .preset = "qwen3-30B-A3B",
                   .layers = 48,
                   .heads = 32,
                   .width = 2048,
                   .context = 40960,
                   .vocab = 151936,
                   .kv_heads = 4,
                   .hidden = 6144,
                   .rotary_base = 1e6,
                   .tied_head = false,
                   .head_dim = 128,
                   .norm_eps = 1e-6,
                   .experts = 128,
                   .experts_per_token = 8,
                   .expert_hidden = 768}},
      .derive = derive_rotary_decoder,
      .make = make_qwen3_moe,
      .from_config = qwen3_moe_from_config,
      .to_config = qwen3_moe_to_config,
      .tensor_map =
          [](const ModelConfig& model) {
            return with_experts(rotary_tensor_map(model, false, true), model, qwen_mixture_names());
          },
      .gguf = {.architecture = "qwen3moe", .difference = qwen3_moe_difference}};
  return family;
}

}  // namespace zs
