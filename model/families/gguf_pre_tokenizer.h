#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace zs {

/// llama.cpp's name for the way in which a byte-level tokenizer.json cuts a text into words: `tokenizer.ggml.pre`. Like
/// its converter this goes by the tokenizer, whatever the model's architecture: by the patterns of the pre-tokenizer.
/// Error(model) that names `file` where llama.cpp has no name for them that is known here.
std::string gguf_pre_tokenizer(const nlohmann::json& tokenizer, const std::string& file);

}  // namespace zs
