#include <nlohmann/json.hpp>

#include "model/families/family.h"
#include "model/families/hf_config.h"
#include "model/families/rotary_decoder.h"

namespace zs {
namespace {

std::unique_ptr<LanguageModel> make_olmo2(const ModelConfig& model) {
  TransformerOptions options = rotary_decoder(model);
  options.block.attention.qk_norm_eps = static_cast<float>(model.norm_eps);
  options.block.attention.has_qk_norm_of_all = true;
  options.block.norms = NormPlace::output;
  return std::make_unique<Transformer>(options);
}

ModelConfig olmo2_from_config(const HfConfig& config) {
  config.require("attention_bias", false);
  ModelConfig model = rotary_from_config(config, "olmo2", {.vocab = 50304, .norm_eps = 1e-5});
  window_of_layers(config, model.layers, 0, 0);  // none has one
  take_default_padding(config, model, 1);
  return model;
}

TensorMap olmo2_tensor_map(const ModelConfig& model) {
  TensorMap map = rotary_tensor_map(model, false, true);
  for (TensorRule& rule : map.rules) {
    std::string& tensor = rule.parts.front().tensor;
    if (rule.parameter.ends_with(".norm2.weight"))
      tensor.replace(tensor.find("post_attention"), 14, "post_feedforward");
    if (rule.parameter.ends_with(".norm1.weight")) tensor.replace(tensor.find("input"), 5, "post_attention");
  }
  return map;
}

}  // namespace

const Family& olmo2_family() {
  static const Family family{
      .name = "olmo2",
      .architecture = "Olmo2ForCausalLM",
      .summary =
          "a `llama` whose norms are of what attention and the MLP add to the residual stream, with RMS norms of "
          "all queries of a token and of all its keys",
      .keys = rotary_decoder_keys(),
      .defaults = {.family = "olmo2", .vocab = 100352, .rotary_base = 500000, .tied_head = false, .norm_eps = 1e-6},
      // OLMo team 2024 (2 OLMo 2 Furious), table 3.
      .presets = {{.family = "olmo2",
                   .preset = "olmo2-7B",
                   .layers = 32,
                   .heads = 32,
                   .width = 4096,
                   .context = 4096,
                   .vocab = 100352,
                   .kv_heads = 32,
                   .hidden = 11008,
                   .rotary_base = 500000,
                   .tied_head = false,
                   .norm_eps = 1e-6}},
      .derive = derive_rotary_decoder,
      .make = make_olmo2,
      .from_config = olmo2_from_config,
      .to_config = [](const ModelConfig& model) { return rotary_to_config(model, "Olmo2ForCausalLM"); },
      .tensor_map = olmo2_tensor_map};
  return family;
}

}  // namespace zs
