#pragma once

#include "model/families/hf_config.h"
#include "model/nn/transformer.h"

namespace zs {

/// Layers over all tokens, and over a window, as config.json calls them.
inline constexpr const char *kFullLayer = "full_attention", *kSlidingLayer = "sliding_attention";

/// Options that Llama and the families after it have in common: RMS norms, rotary positions, query heads that share
/// keys, and a gated MLP, without biases. A family changes what is its own.
TransformerOptions rotary_decoder(const ModelConfig& model);

/// Scaling of rotary positions as the model's keys say.
RotaryScaling rotary_scaling_of(const ModelConfig& model);

/// Derives as many key heads as heads, and a hidden size of 8/3 of the width, up to a multiple of 128, where nobody has
/// said otherwise.
void derive_rotary_decoder(ModelConfig& model);

/// Layers that see all tokens where a config.json does not name them, and the window of the others where it has none.
struct GlobalDefaults {
  std::int64_t every, window;
};
/// Takes layer_types, and the window. Error(model) where they are not those of the layers.
void take_global_layers(const HfConfig& config, ModelConfig& model, const GlobalDefaults& defaults);
/// Adds layer_types.
void add_layer_types(nlohmann::ordered_json& config, const ModelConfig& model);
bool is_global(const ModelConfig& model, std::int64_t layer);

/// Takes the padding token that transformers gives the family's models where a config.json does not name one, not even
/// null. Error(model) where the vocabulary has no such token.
void take_default_padding(const HfConfig& config, ModelConfig& model, std::int64_t token);

/// The keys of model.* that such a decoder has, and `more`.
std::vector<std::string_view> rotary_decoder_keys(std::vector<std::string_view> more = {});

}  // namespace zs
