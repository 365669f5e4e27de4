#include <cmath>
#include <nlohmann/json.hpp>

#include "model/families/family.h"
#include "model/families/hf_config.h"
#include "model/families/rotary_decoder.h"

namespace zs {
namespace {

using nlohmann::json;

constexpr const char *kRope = "rope_parameters", *kLocalBase = "rope_local_base_freq",
                     *kScalar = "query_pre_attn_scalar", *kActivation = "hidden_activation",
                     *kGelu = "gelu_pytorch_tanh", *kBase = "rope_theta", *kModelType = "gemma3_text";

std::unique_ptr<LanguageModel> make_gemma3(const ModelConfig& model) {
  TransformerOptions options = rotary_decoder(model);
  options.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(model.width)));
  BlockOptions& block = options.block;
  block.norm = NormKind::rms_about_one;
  block.norms = NormPlace::both;
  block.mlp.activation = Activation::geglu_tanh;
  block.attention.qk_norm_eps = block.norm_eps;
  block.attention.qk_norm_offset = offset_of(block.norm);
  options.of_layer = [model](std::int64_t layer, BlockOptions& own) {
    if (is_global(model, layer))
      own.attention.window = 0;
    else
      own.attention.rotary = RotaryOptions{.base = model.local_rotary_base};
  };
  return std::make_unique<Transformer>(options);
}

/// The configuration as one for global layers alone has it. transformers 5 writes positions by kinds of layers, those
/// before it beside each other.
HfConfig of_global_layers(const HfConfig& config, ModelConfig& model) {
  model.local_rotary_base = config.number(kLocalBase, model.local_rotary_base);
  const HfConfig rope = config.object(kRope);
  if (!rope.has(kFullLayer) && !rope.has(kSlidingLayer)) return config;
  const HfConfig local = rope.object(kSlidingLayer);
  local.require("rope_type", "default");
  model.local_rotary_base = local.number(kBase, model.local_rotary_base);
  json document = config.document();
  document[kRope] = rope.object(kFullLayer).document();
  return {document, config.file()};
}

ModelConfig gemma3_from_config(const HfConfig& config) {
  config.require("attention_bias", false);
  config.require(kActivation, kGelu);
  config.require("use_bidirectional_attention", false);
  ModelConfig own;
  const HfConfig global = of_global_layers(config, own);
  ModelConfig model = rotary_from_config(global, "gemma3",
                                         {.hidden = 9216,
                                          .vocab = 262208,
                                          .context = 131072,
                                          .kv_heads = 4,
                                          .head_dim = 256,
                                          .layers = 26,
                                          .heads = 8,
                                          .width = 2304,
                                          .rotary_base = 1e6,
                                          .is_tied = true});
  model.local_rotary_base = own.local_rotary_base;
  if (config.number(kScalar, 256) != static_cast<double>(model.head_dim)) config.refuse(kScalar);
  const char* const pattern =
      config.has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  take_global_layers(config, model, {.every = config.integer(pattern, 6), .window = 4096});
  take_default_padding(config, model, 0);
  return model;
}

nlohmann::ordered_json gemma3_to_config(const ModelConfig& model) {
  nlohmann::ordered_json config = rotary_to_config(model, "Gemma3ForCausalLM");
  for (const char* const key : {"hidden_act", "use_sliding_window", "max_window_layers"}) config.erase(key);
  config["model_type"] = kModelType;
  config[kActivation] = kGelu;
  config[kScalar] = config["head_dim"];
  add_layer_types(config, model);
  config[kLocalBase] = model.local_rotary_base;  // readers of the older form find it here
  config[kRope] = {{kFullLayer, config[kRope]},
                   {kSlidingLayer, {{kBase, model.local_rotary_base}, {"rope_type", "default"}}}};
  return config;
}

TensorMap gemma3_tensor_map(const ModelConfig& model) {
  TensorMap map = rotary_tensor_map(model, false, true);
  const std::string block = "model.layers.{}.";
  TensorMap more;
  more.rules = {{"blocks.{}.output_norm1.weight", {{block + "post_attention_layernorm.weight"}}},
                {"blocks.{}.output_norm2.weight", {{block + "post_feedforward_layernorm.weight"}}}};
  for (TensorRule& rule : map.rules) {
    std::string& tensor = rule.parts.front().tensor;
    if (rule.parameter.ends_with(".norm2.weight")) tensor.replace(tensor.find("post_attention"), 14, "pre_feedforward");
  }
  for (TensorRule& rule : expanded(more, model.layers).rules) map.rules.push_back(std::move(rule));
  return map;
}

const char* gemma3_difference(const ModelConfig& model) {
  for (std::int64_t layer = 0; layer < model.layers; ++layer)
    if (is_global(model, layer) != ((layer + 1) % 6 == 0)) return "layers without a window are not every sixth";
  return model.local_rotary_base != 10000 ? "model.local_rotary_base is other than 10000" : nullptr;
}

}  // namespace

const Family& gemma3_family() {
  static const Family family{
      .name = "gemma3",
      .architecture = "Gemma3ForCausalLM",
      .model_type = kModelType,
      .summary =
          "a `llama` with RMS norms of each query and key head, and of what attention and the MLP add, too; weights of "
          "norms about zero, a gate of GELU, embeddings times the root of the width, and a window "
          "(`model.window`) in all layers but `model.global_layers`, which turn by another base "
          "(`model.local_rotary_base`)",
      .keys = rotary_decoder_keys({"model.window", "model.global_layers", "model.local_rotary_base"}),
      .settings = {kScalar},
      .defaults = {.family = "gemma3", .vocab = 262144, .rotary_base = 1e6, .head_dim = 256, .norm_eps = 1e-6},
      // Gemma Team 2025 (Gemma 3), table 1, and the configurations published.
      .presets = {{.family = "gemma3",
                   .preset = "gemma3-270M",
                   .layers = 18,
                   .heads = 4,
                   .width = 640,
                   .context = 32768,
                   .vocab = 262144,
                   .kv_heads = 1,
                   .hidden = 2048,
                   .rotary_base = 1e6,
                   .head_dim = 256,
                   .window = 512,
                   .norm_eps = 1e-6,
                   .pad_token_id = 0,
                   .global_layers = {5, 11, 17}},
                  {.family = "gemma3",
                   .preset = "gemma3-1B",
                   .layers = 26,
                   .heads = 4,
                   .width = 1152,
                   .context = 32768,
                   .vocab = 262144,
                   .kv_heads = 1,
                   .hidden = 6912,
                   .rotary_base = 1e6,
                   .head_dim = 256,
                   .window = 512,
                   .norm_eps = 1e-6,
                   .pad_token_id = 0,
                   .global_layers = {5, 11, 17, 23}}},
      .derive = derive_rotary_decoder,
      .make = make_gemma3,
      .from_config = gemma3_from_config,
      .to_config = gemma3_to_config,
      .tensor_map = gemma3_tensor_map,
      .gguf = {.architecture = "gemma3", .norm_offset = 1, .difference = gemma3_difference}};
  return family;
}

}  // namespace zs
