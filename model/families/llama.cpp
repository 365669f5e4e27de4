#include "model/llama.h"

#include "model/families/family.h"

namespace zs {
namespace {

constexpr std::int64_t kLlamaVocab = 32000;

void derive_llama(ModelConfig& model) {
  constexpr std::int64_t kMultiple = 128;
  if (model.kv_heads == 0) model.kv_heads = model.heads;
  if (model.hidden == 0) model.hidden = (8 * model.width + 3 * kMultiple - 1) / (3 * kMultiple) * kMultiple;
}

std::unique_ptr<LanguageModel> make_llama(const ModelConfig& model) {
  return std::make_unique<Llama>(LlamaConfig{.layers = model.layers,
                                             .heads = model.heads,
                                             .kv_heads = model.kv_heads,
                                             .width = model.width,
                                             .hidden = model.hidden,
                                             .vocab = model.vocab,
                                             .rotary_base = model.rotary_base,
                                             .is_tied = model.tied_head});
}

ModelConfig llama_preset(ModelConfig sizes) {
  sizes.family = "llama";
  sizes.tied_head = false;
  return sizes;
}

// Zhang et al. 2024 (TinyLlama), table 1; Touvron et al. 2023 (Llama 2), 7B; Grattafiori et al. 2024 (Llama 3), table 3. The tiny one is
// ours.
std::vector<ModelConfig> llama_presets() {
  return {llama_preset({.preset = "llama-tiny",
                        .layers = 4,
                        .heads = 4,
                        .width = 128,
                        .context = 256,
                        .vocab = kLlamaVocab,
                        .kv_heads = 2,
                        .hidden = 384}),
          llama_preset({.preset = "llama-1.1B",
                        .layers = 22,
                        .heads = 32,
                        .width = 2048,
                        .context = 2048,
                        .vocab = kLlamaVocab,
                        .kv_heads = 4,
                        .hidden = 5632}),
          llama_preset({.preset = "llama-7B",
                        .layers = 32,
                        .heads = 32,
                        .width = 4096,
                        .context = 4096,
                        .vocab = kLlamaVocab,
                        .kv_heads = 32,
                        .hidden = 11008}),
          llama_preset({.preset = "llama-8B",
                        .layers = 32,
                        .heads = 32,
                        .width = 4096,
                        .context = 8192,
                        .vocab = 128256,
                        .kv_heads = 8,
                        .hidden = 14336,
                        .rotary_base = 500000})};
}

}  // namespace

const Family& llama_family() {
  static const Family family{
      .name = "llama",
      .architecture = "LlamaForCausalLM",
      .summary = "RMS norms, rotary positions, query heads that share keys (`model.kv_heads`), a gated MLP (SwiGLU), no biases",
      .keys = {"model.kv_heads", "model.hidden", "model.rotary_base", "model.tied_head"},
      .defaults = {.family = "llama", .vocab = kLlamaVocab, .tied_head = false},
      .presets = llama_presets(),
      .derive = derive_llama,
      .make = make_llama};
  return family;
}

}  // namespace zs
