#pragma once

#include "model/families/model_config.h"
#include "model/nn/transformer.h"

namespace zs {

/// Options that Llama and the families after it have in common: RMS norms, rotary positions, query heads that share
/// keys, and a gated MLP, without biases. A family changes what is its own.
TransformerOptions rotary_decoder(const ModelConfig& model);

/// Derives as many key heads as heads, and a hidden size of 8/3 of the width, up to a multiple of 128, where nobody has
/// said otherwise.
void derive_rotary_decoder(ModelConfig& model);

/// The keys of model.* that such a decoder has, and `more`.
std::vector<std::string_view> rotary_decoder_keys(std::vector<std::string_view> more = {});

}  // namespace zs
