#include "model/gpt2.h"

#include "model/families/family.h"

namespace zs {
namespace {

std::unique_ptr<LanguageModel> make_gpt2(const ModelConfig& model) {
  return std::make_unique<Gpt2>(Gpt2Config{.layers = model.layers,
                                           .heads = model.heads,
                                           .width = model.width,
                                           .context = model.context,
                                           .vocab = model.vocab,
                                           .gelu = model.activation == "gelu_erf" ? GeluKind::erf : GeluKind::tanh});
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
      .summary = "layer norms, learned positions, an MLP with GELU, biases",
      .keys = {"model.activation"},
      .defaults = {.family = "gpt2", .vocab = 50257},
      // Radford et al. 2019, table 2, with the head count of the released models; the tiny one is ours.
      .presets = {gpt2_preset("tiny", 4, 4, 128, 256), gpt2_preset("124M", 12, 12, 768), gpt2_preset("355M", 24, 16, 1024),
                  gpt2_preset("774M", 36, 20, 1280), gpt2_preset("1.5B", 48, 25, 1600)},
      .derive = [](ModelConfig&) {},
      .make = make_gpt2};
  return family;
}

}  // namespace zs
