#include <nlohmann/json.hpp>

#include "model/families/family.h"
#include "model/families/mixture.h"
#include "model/families/rotary_decoder.h"

namespace zs {
namespace {

using nlohmann::json;

constexpr const char *kSigmoidFactor = "swiglu_alpha", *kLimit = "swiglu_limit";

std::unique_ptr<LanguageModel> make_gpt_oss(const ModelConfig& model) {
  TransformerOptions options = rotary_decoder(model);
  AttentionOptions& attention = options.block.attention;
  attention.has_qkv_bias = attention.has_bias = attention.has_sinks = true;
  options.block.mlp.activation = Activation::clamped_swiglu;
  set_experts(options, model);
  options.block.mixture->router.has_bias = options.block.mixture->experts.has_bias = true;
  options.of_layer = [model](std::int64_t layer, BlockOptions& own) {
    if (is_global(model, layer)) own.attention.window = 0;
  };
  return std::make_unique<Transformer>(options);
}

/// The configuration with what transformers takes where it says nothing of positions.
HfConfig with_positions(const HfConfig& config) {
  if (config.has("rope_parameters") || config.has("rope_scaling")) return config;
  json document = config.document();
  document["rope_parameters"] = {{"rope_type", "yarn"}, {"factor", 32.0},
                                 {"beta_fast", 32.0},   {"beta_slow", 1.0},
                                 {"truncate", false},   {"original_max_position_embeddings", 4096u}};
  return {document, config.file()};
}

ModelConfig gpt_oss_from_config(const HfConfig& config) {
  config.require("attention_bias", true);
  config.require(kSigmoidFactor, 1.702);
  config.require(kLimit, 7.0);
  ModelConfig model = rotary_from_config(with_positions(config), "gpt_oss",
                                         {.hidden = 2880,
                                          .vocab = 201088,
                                          .context = 131072,
                                          .kv_heads = 8,
                                          .head_dim = 64,
                                          .layers = 36,
                                          .heads = 64,
                                          .width = 2880,
                                          .norm_eps = 1e-5,
                                          .rotary_base = 150000});
  take_experts(config, model, {.experts = 128, .experts_per_token = 4});
  take_global_layers(config, model, {.every = 2, .window = 128});
  return model;
}

nlohmann::ordered_json gpt_oss_to_config(const ModelConfig& model) {
  nlohmann::ordered_json config = rotary_to_config(model, "GptOssForCausalLM");
  for (const char* const key : {"use_sliding_window", "max_window_layers"}) config.erase(key);
  add_experts(config, model, "num_local_experts");
  config["attention_bias"] = true;
  config[kSigmoidFactor] = 1.702;
  config[kLimit] = 7.0;
  add_layer_types(config, model);
  return config;
}

TensorMap gpt_oss_tensor_map(const ModelConfig& model) {
  TensorMap map = rotary_tensor_map(model, true, false), more;
  std::erase_if(map.rules, [](const TensorRule& rule) { return rule.parameter.find(".mlp.") != rule.parameter.npos; });
  const std::string files = "model.layers.{}.", mlp = "blocks.{}.mlp.", experts = files + "mlp.experts.";
  const auto rule = [&](const std::string& parameter, const std::string& tensor, bool is_transposed, bool is_pair) {
    more.rules.push_back({.parameter = mlp + "experts." + parameter,
                          .parts = {{experts + tensor}},
                          .is_transposed = is_transposed,
                          .matrices = model.experts,
                          .interleaved = is_pair ? 2 : 1});
  };
  rule("gate_up", "gate_up_proj", true, true);
  rule("down", "down_proj", true, false);
  rule("gate_up_bias", "gate_up_proj_bias", false, true);
  rule("down_bias", "down_proj_bias", false, false);
  more.rules.push_back({mlp + "router.weight", {{files + "mlp.router.weight"}}});
  more.rules.push_back({mlp + "router.bias", {{files + "mlp.router.bias"}}});
  more.rules.push_back({"blocks.{}.attention.sinks", {{files + "self_attn.sinks"}}});
  more.rules.push_back({"blocks.{}.attention.out.bias", {{files + "self_attn.o_proj.bias"}}});
  for (TensorRule& one : expanded(more, model.layers).rules) map.rules.push_back(std::move(one));
  return map;
}

std::vector<std::int64_t> every_second(std::int64_t layers) {
  std::vector<std::int64_t> global;
  for (std::int64_t layer = 1; layer < layers; layer += 2) global.push_back(layer);
  return global;
}

ModelConfig published(const char* name, std::int64_t layers, std::int64_t experts) {
  return {.family = "gpt_oss",
          .preset = name,
          .layers = layers,
          .heads = 64,
          .width = 2880,
          .context = 131072,
          .vocab = 201088,
          .kv_heads = 8,
          .hidden = 2880,
          .rotary_base = 150000,
          .tied_head = false,
          .head_dim = 64,
          .window = 128,
          .rotary_scaling = "yarn",
          .rotary_factor = 32,
          .rotary_low = 1,
          .rotary_high = 32,
          .rotary_context = 4096,
          .rotary_truncate = false,
          .global_layers = every_second(layers),
          .experts = experts,
          .experts_per_token = 4};
}

const char* gpt_oss_difference(const ModelConfig& model) {
  return model.global_layers != every_second(model.layers) ? "not every second layer has a window" : nullptr;
}

}  // namespace

const Family& gpt_oss_family() {
  static const Family family{
      .name = "gpt_oss",
      .architecture = "GptOssForCausalLM",
      .summary =
          "a `mixtral` with a sink in each head's softmax, biases of all products but the head, clamped gates, and a "
          "window (`model.window`) in all layers but `model.global_layers`",
      .keys = mixture_keys({"model.window", "model.global_layers"}),
      .settings = mixture_settings(),
      .defaults = {.family = "gpt_oss",
                   .vocab = 201088,
                   .rotary_base = 150000,
                   .tied_head = false,
                   .head_dim = 64,
                   .experts = 32,
                   .experts_per_token = 4},
      // OpenAI 2025 (gpt-oss-120b and gpt-oss-20b model card), and the configurations published.
      .presets = {published("gpt-oss-20b", 24, 32), published("gpt-oss-120b", 36, 128)},
      .derive = derive_rotary_decoder,
      .make = make_gpt_oss,
      .from_config = gpt_oss_from_config,
      .to_config = gpt_oss_to_config,
      .tensor_map = gpt_oss_tensor_map,
      .gguf = {.architecture = "gpt-oss",
               .norm2 = "post_attention_norm",
               .rounds_ramp = true,
               .difference = gpt_oss_difference}};
  return family;
}

}  // namespace zs
