#include "model/tokenizer/tokenizer.h"

#include "model/tokenizer/bpe_tokenizer.h"
#include "model/tokenizer/sentencepiece_tokenizer.h"
#include "model/tokenizer/tokenizer_config.h"
#include "runtime/base/check.h"
#include "runtime/base/not_fetched.h"

namespace zs {
namespace {

std::optional<std::int32_t> usual_end_of_text(const BpeTokenizer& tokenizer) {
  for (const std::string_view name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"})
    for (const AddedToken& token : tokenizer.added_tokens())
      if (token.content == name) return token.id;
  return std::nullopt;
}

}  // namespace

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  std::vector<std::int32_t> ids;
  make_encoder()->encode(text, add_special_tokens, ids);
  return ids;
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path) {
  const TokenizerFiles files = find_tokenizer_files(path);
  if (files.json.empty() && files.pieces.empty())
    throw Error(ExitCode::model, "there is neither tokenizer.json nor tokenizer.model", files.folder,
                is_like_hub_name(path) ? kFetchModel : "name a folder that has one of them");
  const TokenizerConfig config = read_tokenizer_config(files.folder);
  std::unique_ptr<Tokenizer> tokenizer;
  if (!files.json.empty()) {
    auto bpe = std::make_unique<BpeTokenizer>(files.json, config);
    bpe->end_of_text_ = usual_end_of_text(*bpe);
    tokenizer = std::move(bpe);
  } else {
    tokenizer = open_sentencepiece(files.pieces, config);
  }
  if (!config.bos_token.empty()) tokenizer->begin_of_text_ = tokenizer->token_to_id(config.bos_token);
  if (!config.eos_token.empty()) {
    tokenizer->end_of_text_ = tokenizer->token_to_id(config.eos_token);
    if (!tokenizer->end_of_text_)
      throw Error(ExitCode::model, fmt::format("eos_token '{}' is no token of the tokenizer", config.eos_token),
                  files.folder, "correct eos_token of its tokenizer_config.json or special_tokens_map.json");
  }
  return tokenizer;
}

}  // namespace zs
