#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "model/train/config.h"

namespace zs {

/// Between the tokens of a sample and what people read: through a tokenizer, else as bytes, else as numbers. A value; `tokenizer`, null for
/// none, outlives it.
class SampleText {
 public:
  SampleText(const Config& config, const Tokenizer* tokenizer) : is_bytes_(config.data.kind == "text"), tokenizer_(tokenizer) {}

  /// What a sample goes on from; never empty. A tokenizer puts its special tokens before it, not the end of the text behind it. Where there
  /// is no text: the end-of-text token, which stands before a document, else a line end of bytes, else token 0.
  std::vector<std::int32_t> prompt(std::string_view text) const;
  /// The text and what follows it, or of tokens without a text what follows, for a terminal (printable, model/data/utf8.h).
  std::string print(const std::string& text, const std::vector<std::int32_t>& prompt, const std::vector<std::int32_t>& drawn,
                    bool is_utf8) const;

 private:
  bool is_bytes_;
  const Tokenizer* tokenizer_;
};

}  // namespace zs
