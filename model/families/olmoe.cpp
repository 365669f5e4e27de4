#include <nlohmann/json.hpp>

#include "model/families/family.h"
#include "model/families/mixture.h"
#include "model/families/rotary_decoder.h"

namespace zs {
namespace {

std::unique_ptr<LanguageModel> make_olmoe(const ModelConfig& model) {
  TransformerOptions options = rotary_decoder(model);
  options.block.attention.qk_norm_eps = static_cast<float>(model.norm_eps);
  options.block.attention.has_qk_norm_of_all = true;
  set_experts(options, model);
  return std::make_unique<Transformer>(options);
}

ModelConfig olmoe_from_config(const HfConfig& config) {
  config.require("attention_bias", false);
  ModelConfig model = rotary_from_config(
      config, "olmoe",
      {.hidden = 2048, .vocab = 50304, .context = 4096, .layers = 16, .heads = 16, .width = 2048, .norm_eps = 1e-5});
  take_experts(config, model, {.experts = 64, .experts_per_token = 8});
  model.norm_topk = config.boolean("norm_topk_prob", false);
  window_of_layers(config, model.layers, 0, 0);  // none has one
  take_default_padding(config, model, 1);
  return model;
}

nlohmann::ordered_json olmoe_to_config(const ModelConfig& model) {
  nlohmann::ordered_json config = rotary_to_config(model, "OlmoeForCausalLM");
  add_experts(config, model, "num_experts");
  config["norm_topk_prob"] = model.norm_topk;
  return config;
}

}  // namespace

const Family& olmoe_family() {
  static const Family family{
      .name = "olmoe",
      .architecture = "OlmoeForCausalLM",
      .summary = "a `llama` whose MLPs are mixtures, with an RMS norm of all queries of a token and one of its keys",
      .keys = mixture_keys({"model.norm_topk"}),
      .settings = mixture_settings(),
      .defaults = {.family = "olmoe",
                   .vocab = 50304,
                   .tied_head = false,
                   .experts = 64,
                   .experts_per_token = 8,
                   .norm_topk = false},
      // Muennighoff et al. 2024 (OLMoE), table 1.
      .presets = {{.family = "olmoe",
                   .preset = "olmoe-1B-7B",
                   .layers = 16,
                   .heads = 16,
                   .width = 2048,
                   .context = 4096,
                   .vocab = 50304,
                   .kv_heads = 16,
                   .hidden = 1024,
                   .tied_head = false,
                   .experts = 64,
                   .experts_per_token = 8,
                   .norm_topk = false}},
      .derive = derive_rotary_decoder,
      .make = make_olmoe,
      .from_config = olmoe_from_config,
      .to_config = olmoe_to_config,
      .tensor_map =
          [](const ModelConfig& model) {
            return with_experts(rotary_tensor_map(model, false, true), model, qwen_mixture_names());
          },
      .gguf = {.architecture = "olmoe", .difference = [](const ModelConfig& model) {
                 return model.norm_topk ? "model.norm_topk is true" : nullptr;
               }}};
  return family;
}

}  // namespace zs
