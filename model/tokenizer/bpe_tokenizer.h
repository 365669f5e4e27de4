#pragma once

#include <memory>
#include <string>

#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/tokenizer_config.h"
#include "model/tokenizer/tokenizer_spec.h"

namespace zs {

/// A tokenizer.json whose model is BPE, and what the files beside it say.
class BpeTokenizer : public Tokenizer {
 public:
  BpeTokenizer(const std::string& path, const TokenizerConfig& config);

  std::unique_ptr<Encoder> make_encoder() const override;
  std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const override;
  std::int32_t vocab_size() const override { return static_cast<std::int32_t>(tokens_.size()); }
  std::optional<std::int32_t> token_to_id(std::string_view token) const override;
  std::optional<std::string> id_to_token(std::int32_t id) const override;
  std::string surface(std::int32_t id) const override;
  bool is_special(std::int32_t id) const override;
  const std::vector<AddedToken>& added_tokens() const { return spec_.added_tokens; }

 private:
  class BpeEncoder;
  struct Token {
    std::string text;
    bool exists = false, is_special = false;
  };
  void add_tokens();
  void set_token(std::int32_t id, const std::string& text, bool is_special);
  std::string text_of(const AddedToken& token) const;
  AddedTokenMatcher make_matcher(bool normalized, bool splits_special) const;

  std::string path_;
  TokenizerSpec spec_;
  bool byte_level_ = false;  // the last pre-tokenizer is ByteLevel: words reach the model as raw bytes
  Bpe bpe_;
  Vocabulary added_ids_;
  std::vector<Token> tokens_;                                 // by id
  std::vector<std::unique_ptr<AddedTokenMatcher>> matchers_;  // in the text as it is, in the normalized text
};

/// Applies decoder steps to tokens. Throws Error(model) for one that is not supported.
std::string decode_tokens(const TokenizerSpec& spec, std::vector<std::string> tokens, const std::string& file);

}  // namespace zs
