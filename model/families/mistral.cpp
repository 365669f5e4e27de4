#include "model/families/family.h"
#include "model/families/rotary_decoder.h"

namespace zs {

const Family& mistral_family() {
  static const Family family{.name = "mistral",
                             .architecture = "MistralForCausalLM",
                             .summary = "a `llama` whose tokens see only those before them in a window (`model.window`)",
                             .keys = rotary_decoder_keys({"model.window"}),
                             .defaults = {.family = "mistral", .vocab = 32000, .tied_head = false},
                             // Jiang et al. 2023 (Mistral 7B), table 1.
                             .presets = {{.family = "mistral",
                                          .preset = "mistral-7B",
                                          .layers = 32,
                                          .heads = 32,
                                          .width = 4096,
                                          .context = 32768,
                                          .vocab = 32000,
                                          .kv_heads = 8,
                                          .hidden = 14336,
                                          .tied_head = false,
                                          .window = 4096}},
                             .derive = derive_rotary_decoder,
                             .make = [](const ModelConfig& model) -> std::unique_ptr<LanguageModel> {
                               return std::make_unique<Transformer>(rotary_decoder(model));
                             }};
  return family;
}

}  // namespace zs
