#pragma once

#include <string>

#include "model/families/model_config.h"

namespace zs {

/// True if there is a tokenizer in this folder, or is this file; false of an empty name.
bool has_tokenizer(const std::string& tokenizer);

/// Text of an exported model's config.json: the model's own where it still describes it, else one that zshard makes,
/// with the dtype that is written ("f32") and the ids that begin and end a text. `tokenizer`: its folder, or one of its
/// files; empty: unknown.
std::string exported_config(const ModelConfig& model, const std::string& tokenizer, const std::string& dtype);

}  // namespace zs
