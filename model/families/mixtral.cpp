#include <nlohmann/json.hpp>

#include "model/families/family.h"
#include "model/families/mixture.h"
#include "model/families/rotary_decoder.h"

namespace zs {
namespace {

const MixtureNames kMixtralNames{"block_sparse_moe.gate", "block_sparse_moe.experts", {"w1", "w3", "w2"}};

std::unique_ptr<LanguageModel> make_mixtral(const ModelConfig& model) {
  TransformerOptions options = rotary_decoder(model);
  set_experts(options, model);
  return std::make_unique<Transformer>(options);
}

ModelConfig mixtral_from_config(const HfConfig& config) {
  ModelConfig model = rotary_from_config(
      config, "mixtral", {.hidden = 14336, .context = 131072, .kv_heads = 8, .norm_eps = 1e-5, .rotary_base = 1e6});
  take_experts(config, model, {.experts = 8, .experts_per_token = 2});
  model.window = window_of_layers(config, model.layers, config.integer("sliding_window", 0), 0);
  return model;
}

nlohmann::ordered_json mixtral_to_config(const ModelConfig& model) {
  nlohmann::ordered_json config = rotary_to_config(model, "MixtralForCausalLM");
  add_experts(config, model, "num_local_experts");
  return config;
}

}  // namespace

const Family& mixtral_family() {
  static const Family family{.name = "mixtral",
                             .architecture = "MixtralForCausalLM",
                             .summary =
                                 "a `mistral` whose MLPs are mixtures of `model.experts`, of which each token has "
                                 "`model.experts_per_token`",
                             .keys = mixture_keys({"model.window"}),
                             .settings = mixture_settings(),
                             .defaults = {.family = "mixtral",
                                          .vocab = 32000,
                                          .rotary_base = 1e6,
                                          .tied_head = false,
                                          .experts = 8,
                                          .experts_per_token = 2},
                             // Jiang et al. 2024 (Mixtral of experts), table 1.
                             .presets = {{.family = "mixtral",
                                          .preset = "mixtral-8x7B",
                                          .layers = 32,
                                          .heads = 32,
                                          .width = 4096,
                                          .context = 32768,
                                          .vocab = 32000,
                                          .kv_heads = 8,
                                          .hidden = 14336,
                                          .rotary_base = 1e6,
                                          .tied_head = false,
                                          .experts = 8,
                                          .experts_per_token = 2}},
                             .derive = derive_rotary_decoder,
                             .make = make_mixtral,
                             .from_config = mixtral_from_config,
                             .to_config = mixtral_to_config,
                             .tensor_map =
                                 [](const ModelConfig& model) {
                                   return with_experts(rotary_tensor_map(model, false, false), model, kMixtralNames);
                                 },
                             .gguf = {.architecture = "llama", .permutes_heads = true}};
  return family;
}

}  // namespace zs
