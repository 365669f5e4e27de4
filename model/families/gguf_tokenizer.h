#pragma once

#include "model/families/gguf.h"
#include "model/families/gguf_fields.h"

namespace zs {

/// The tokenizer `tokenizer`, a folder or one of its files, as llama.cpp has it; "none" where it is empty or there is
/// none. A tokenizer.model counts unless tokenizer.json is byte-level. Begin, end and padding are those of the
/// tokenizer's own files (TokenizerConfig), as texts were trained on; what these do not say is as in config.json of
/// `model.path`. Returns warnings: tokens for which the model has no embedding. Error(model) where llama.cpp has no
/// tokenizer of its kind.
std::vector<std::string> add_gguf_tokenizer(GgufFields& fields, const ModelConfig& model, const std::string& tokenizer);

}  // namespace zs
