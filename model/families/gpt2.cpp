#include "model/families/family.h"
#include "model/transformer.h"

namespace zs {
namespace {

std::unique_ptr<LanguageModel> make_gpt2(const ModelConfig& model) {
  const Activation activation = model.activation == "gelu_erf" ? Activation::gelu_erf : Activation::gelu_tanh;
  const std::int64_t hidden = model.hidden > 0 ? model.hidden : 4 * model.width;
  return std::make_unique<Transformer>(
      TransformerOptions{.vocab = model.vocab,
                         .layers = model.layers,
                         .positions = model.context,
                         .is_tied = model.tied_head,
                         .block = {.norm = NormKind::layer,
                                   .norm_eps = static_cast<float>(model.norm_eps),
                                   .attention = {.width = model.width, .heads = model.heads},
                                   .mlp = {.width = model.width, .hidden = hidden, .activation = activation}}});
}

ModelConfig gpt2_preset(std::string name, std::int64_t layers, std::int64_t heads, std::int64_t width, std::int64_t context = 1024) {
  return {
      .family = "gpt2", .preset = std::move(name), .layers = layers, .heads = heads, .width = width, .context = context, .vocab = 50257};
}

}  // namespace

const Family& gpt2_family() {
  static const Family family{
      .name = "gpt2",
      .architecture = "GPT2LMHeadModel",
      .summary = "layer norms, learned positions, an MLP with GELU of 4 x `model.width` unless `model.hidden` says otherwise, biases",
      .keys = {"model.activation", "model.hidden"},
      .defaults = {.family = "gpt2", .vocab = 50257},
      // Radford et al. 2019, table 2, with the head count of the released models; the tiny one is ours.
      .presets = {gpt2_preset("tiny", 4, 4, 128, 256), gpt2_preset("124M", 12, 12, 768), gpt2_preset("355M", 24, 16, 1024),
                  gpt2_preset("774M", 36, 20, 1280), gpt2_preset("1.5B", 48, 25, 1600)},
      .derive = [](ModelConfig&) {},
      .make = make_gpt2};
  return family;
}

}  // namespace zs
