#pragma once

#include "model/families/gguf.h"
#include "model/families/gguf_fields.h"

namespace zs {

/// The tokenizer of the folder `model.path`, as llama.cpp has it; "none" where there is none. A tokenizer.model counts
/// unless tokenizer.json is byte-level. Error(model) where llama.cpp has no tokenizer of its kind.
void add_gguf_tokenizer(GgufFields& fields, const GgufFamily& family, const ModelConfig& model);

}  // namespace zs
