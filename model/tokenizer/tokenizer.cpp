#include "model/tokenizer/tokenizer.h"

#include <array>
#include <filesystem>

#include "model/tokenizer/bpe_tokenizer.h"
#include "model/tokenizer/sentencepiece_tokenizer.h"
#include "runtime/base/check.h"

namespace zs {
namespace {

bool is_there(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

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
  std::error_code error;
  const bool is_file = std::filesystem::is_regular_file(path, error);
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = !is_file ? path : parent.empty() ? "." : parent.string();
  const bool is_model = is_file && path.ends_with(".model");
  const std::string settings = folder + "/tokenizer_config.json";
  const TokenizerConfig config = is_there(settings) ? read_tokenizer_config(settings) : TokenizerConfig();
  std::unique_ptr<Tokenizer> tokenizer;
  if (const std::string json = is_file ? path : folder + "/tokenizer.json"; is_there(json) && !is_model) {
    auto bpe = std::make_unique<BpeTokenizer>(json);
    bpe->end_of_text_ = usual_end_of_text(*bpe);
    tokenizer = std::move(bpe);
  } else if (const std::string model = is_file ? path : folder + "/tokenizer.model"; is_there(model)) {
    tokenizer = open_sentencepiece(model, config);
  } else {
    throw Error(ExitCode::model, "there is neither tokenizer.json nor tokenizer.model", folder,
                "name a folder that has one of them");
  }
  if (!config.eos_token.empty()) {
    tokenizer->end_of_text_ = tokenizer->token_to_id(config.eos_token);
    if (!tokenizer->end_of_text_)
      throw Error(ExitCode::model, fmt::format("eos_token '{}' is no token of the tokenizer", config.eos_token),
                  settings, "correct eos_token");
  }
  return tokenizer;
}

}  // namespace zs
