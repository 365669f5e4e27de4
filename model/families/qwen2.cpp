#include <nlohmann/json.hpp>

#include "model/families/family.h"
#include "model/families/hf_config.h"
#include "model/families/rotary_decoder.h"

namespace zs {
namespace {

std::unique_ptr<LanguageModel> make_qwen2(const ModelConfig& model) {
  TransformerOptions options = rotary_decoder(model);
  options.block.attention.has_qkv_bias = true;
  return std::make_unique<Transformer>(options);
}

ModelConfig qwen2_from_config(const HfConfig& config) {
  ModelConfig model =
      rotary_from_config(config, "qwen2", {.hidden = 22016, .vocab = 151936, .context = 32768, .kv_heads = 32});
  model.window = qwen_window(config, model.layers);
  return model;
}

}  // namespace

const Family& qwen2_family() {
  static const Family family{
      .name = "qwen2",
      .architecture = "Qwen2ForCausalLM",
      .summary = "a `llama` with biases of queries, keys and values",
      .keys = rotary_decoder_keys({"model.window"}),
      .defaults = {.family = "qwen2", .vocab = 151936, .rotary_base = 1e6, .tied_head = false, .norm_eps = 1e-6},
      // Yang et al. 2024 (Qwen2), table 1.
      .presets = {{.family = "qwen2",
                   .preset = "qwen2-0.5B",
                   .layers = 24,
                   .heads = 14,
                   .width = 896,
                   .context = 131072,
                   .vocab = 151936,
                   .kv_heads = 2,
                   .hidden = 4864,
                   .rotary_base = 1e6,
                   .norm_eps = 1e-6},
                  {.family = "qwen2",
                   .preset = "qwen2-7B",
                   .layers = 28,
                   .heads = 28,
                   .width = 3584,
                   .context = 131072,
                   .vocab = 152064,
                   .kv_heads = 4,
                   .hidden = 18944,
                   .rotary_base = 1e6,
                   .tied_head = false,
                   .norm_eps = 1e-6}},
      .derive = derive_rotary_decoder,
      .make = make_qwen2,
      .from_config = qwen2_from_config,
      .to_config = [](const ModelConfig& model) { return rotary_to_config(model, "Qwen2ForCausalLM"); },
      .tensor_map = [](const ModelConfig& model) { return rotary_tensor_map(model, true, false); },
      .gguf = {"qwen2", false}};
  return family;
}

}  // namespace zs
