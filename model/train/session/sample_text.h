#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "model/train/config/config_dataset.h"

namespace zs {

/// Between the tokens of a sample and what people read: through a tokenizer, else as bytes, else as numbers. A value;
/// `tokenizer`, null for none, outlives it.
class SampleText {
 public:
  SampleText(const Config& config, const Tokenizer* tokenizer)
      : is_bytes_(config.data.kind == "text"),
        vocab_(config.model.vocab),
        tokenizer_(tokenizer),
        special_(special_tokens(config)) {}

  /// Tokens that a sample goes on from; never empty. A tokenizer puts its special tokens before it
  /// (data.special_tokens), not the end of the text after it. Where there is no text: those special tokens, with which
  /// every document begins; else the end-of-text token, which stands before a document, else a line end of bytes, else
  /// token 0. Error(config) for a text that the tokenizer refuses, or that has a token which the model does not know;
  /// it names `key`.
  std::vector<std::int32_t> prompt(std::string_view text, const std::string& key) const;
  /// Checks tokens that were given; throws the error of `prompt`.
  void check(const std::vector<std::int32_t>& tokens, const std::string& key) const;
  /// The text and what follows it, or of tokens without a text what follows, for a terminal (printable,
  /// model/data/utf8.h).
  std::string print(const std::string& text, const std::vector<std::int32_t>& prompt,
                    const std::vector<std::int32_t>& drawn, bool is_utf8) const;

 private:
  bool is_bytes_;
  std::int64_t vocab_;
  const Tokenizer* tokenizer_;
  SpecialTokens special_;
};

}  // namespace zs
