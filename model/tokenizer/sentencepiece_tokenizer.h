#pragma once

#include <memory>
#include <string>

#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/tokenizer_config.h"

namespace zs {

/// A tokenizer.model, with the tokens that `config` adds. Special tokens around a text are those that it asks for.
std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& path, const TokenizerConfig& config);

}  // namespace zs
