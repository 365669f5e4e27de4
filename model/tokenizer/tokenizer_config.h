#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer_spec.h"

namespace zs {

/// The files of a tokenizer.
struct TokenizerFiles {
  std::string folder, json, pieces;  ///< tokenizer.json and tokenizer.model, or what they are called; empty: none
};
/// `path`: a folder, or one of its files: then it is the only one.
TokenizerFiles find_tokenizer_files(const std::string& path);

/// Settings of the files beside tokenizer.json or tokenizer.model, as transformers reads them: tokenizer_config.json;
/// and unless that has added_tokens_decoder, special_tokens_map.json, which goes before it, and added_tokens.json.
struct TokenizerConfig {
  std::string bos_token, eos_token, unk_token, pad_token;  ///< "": none
  std::optional<bool> add_bos_token, add_eos_token, add_prefix_space;
  bool is_legacy = true;                 ///< SentencePiece: text behind an added token begins with a space
  bool split_special_tokens = false;     ///< the text of a special token is a text like others
  std::vector<AddedToken> added_tokens;  ///< by id
};
/// Throws Error(model) that names the file.
TokenizerConfig read_tokenizer_config(const std::string& folder);

}  // namespace zs
