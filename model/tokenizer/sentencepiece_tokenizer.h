#pragma once

#include <memory>
#include <string>

#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/tokenizer_spec.h"

namespace zs {

/// A tokenizer.model. Special tokens around a text are those that `config` asks for.
std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& path, const TokenizerConfig& config);

}  // namespace zs
