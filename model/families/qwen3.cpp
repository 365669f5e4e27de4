#include <nlohmann/json.hpp>

#include "model/families/family.h"
#include "model/families/hf_config.h"
#include "model/families/rotary_decoder.h"

namespace zs {
namespace {

std::unique_ptr<LanguageModel> make_qwen3(const ModelConfig& model) {
  TransformerOptions options = rotary_decoder(model);
  options.block.attention.qk_norm_eps = static_cast<float>(model.norm_eps);
  return std::make_unique<Transformer>(options);
}

ModelConfig qwen3_from_config(const HfConfig& config) {
  config.require("attention_bias", false);
  ModelConfig model = rotary_from_config(
      config, "qwen3", {.hidden = 22016, .vocab = 151936, .context = 32768, .kv_heads = 32, .head_dim = 128});
  model.window = qwen_window(config, model.layers);
  return model;
}

}  // namespace

const Family& qwen3_family() {
  static const Family family{
      .name = "qwen3",
      .architecture = "Qwen3ForCausalLM",
      .summary = "a `llama` with RMS norms of each query and key head",
      .keys = rotary_decoder_keys({"model.window"}),
      .defaults = {.family = "qwen3",
                   .vocab = 151936,
                   .rotary_base = 1e6,
                   .tied_head = false,
                   .head_dim = 128,
                   .norm_eps = 1e-6},
      // Yang et al. 2025 (Qwen3), table 1.
      .presets = {{.family = "qwen3",
                   .preset = "qwen3-0.6B",
                   .layers = 28,
                   .heads = 16,
                   .width = 1024,
                   .context = 40960,
                   .vocab = 151936,
                   .kv_heads = 8,
                   .hidden = 3072,
                   .rotary_base = 1e6,
                   .head_dim = 128,
                   .norm_eps = 1e-6},
                  {.family = "qwen3",
                   .preset = "qwen3-8B",
                   .layers = 36,
                   .heads = 32,
                   .width = 4096,
                   .context = 40960,
                   .vocab = 151936,
                   .kv_heads = 8,
                   .hidden = 12288,
                   .rotary_base = 1e6,
                   .tied_head = false,
                   .head_dim = 128,
                   .norm_eps = 1e-6}},
      .derive = derive_rotary_decoder,
      .make = make_qwen3,
      .from_config = qwen3_from_config,
      .to_config = [](const ModelConfig& model) { return rotary_to_config(model, "Qwen3ForCausalLM"); },
      .tensor_map = [](const ModelConfig& model) { return rotary_tensor_map(model, false, true); },
      .gguf = {"qwen3", false}};
  return family;
}

}  // namespace zs
