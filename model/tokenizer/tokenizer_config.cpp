#include "model/tokenizer/tokenizer_config.h"

#include <algorithm>
#include <filesystem>

#include "model/tokenizer/json_fields.h"
#include "runtime/base/parse_integer.h"

namespace zs {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::string existing(const std::string& folder, const char* name) {
  std::error_code failed;
  std::string path = folder + "/" + name;
  return fs::exists(path, failed) ? path : std::string();
}

/// "</s>", or an object with a content.
std::string token_text(Fields& fields, const char* key) {
  const json* const token = fields.find(key);
  if (token == nullptr) return {};
  return token->is_string() ? token->get<std::string>() : fields.object(key).text("content");
}

/// The names of special tokens; one that is not there stays.
void read_names(Fields& fields, TokenizerConfig& config) {
  for (const auto& [key, name] : {std::pair("bos_token", &config.bos_token),
                                  {"eos_token", &config.eos_token},
                                  {"unk_token", &config.unk_token},
                                  {"pad_token", &config.pad_token}})
    if (std::string text = token_text(fields, key); !text.empty()) *name = std::move(text);
}

std::optional<bool> choice(Fields& fields, const char* key) {
  return fields.find(key) == nullptr ? std::nullopt : std::optional(fields.boolean(key));
}

/// added_tokens_decoder: tokens by id.
void read_decoder(Fields decoder, const json& object, TokenizerConfig& config) {
  for (const auto& entry : object.items()) {
    const auto id = parse_integer<std::int32_t>(entry.key());
    if (!id || *id < 0 || *id > kLargestTokenId)
      decoder.fail(fmt::format("has a token of id '{}'", shown(entry.key())));
    Fields fields = decoder.object(entry.key().c_str());
    config.added_tokens.push_back({.id = *id,
                                   .content = fields.text("content"),
                                   .single_word = fields.boolean("single_word", false),
                                   .lstrip = fields.boolean("lstrip", false),
                                   .rstrip = fields.boolean("rstrip", false),
                                   .normalized = fields.boolean("normalized", false),
                                   .special = fields.boolean("special", false)});
  }
}

/// added_tokens.json: ids by token. Those that have a part to play are special.
void read_added(const std::string& path, TokenizerConfig& config) {
  const json document = read_tokenizer_document(path);
  Fields fields(document, path, "");
  for (const auto& entry : document.items()) {
    const auto id = static_cast<std::int32_t>(fields.integer(entry.key().c_str(), kLargestTokenId));
    const auto names = {config.bos_token, config.eos_token, config.unk_token, config.pad_token};
    const bool is_special = std::find(names.begin(), names.end(), entry.key()) != names.end();
    config.added_tokens.push_back({.id = id, .content = entry.key(), .normalized = !is_special, .special = is_special});
  }
}

}  // namespace

TokenizerFiles find_tokenizer_files(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error))
    return {path, existing(path, "tokenizer.json"), existing(path, "tokenizer.model")};
  const std::string parent = fs::path(path).parent_path().string(), folder = parent.empty() ? "." : parent;
  return path.ends_with(".model") ? TokenizerFiles{folder, "", path} : TokenizerFiles{folder, path, ""};
}

TokenizerConfig read_tokenizer_config(const std::string& folder) {
  TokenizerConfig config;
  bool has_decoder = false;
  if (const std::string path = existing(folder, "tokenizer_config.json"); !path.empty()) {
    const json document = read_tokenizer_document(path);
    Fields fields(document, path, "");
    read_names(fields, config);
    config.add_bos_token = choice(fields, "add_bos_token");
    config.add_eos_token = choice(fields, "add_eos_token");
    config.add_prefix_space = choice(fields, "add_prefix_space");
    config.is_legacy = fields.boolean("legacy", true);
    config.split_special_tokens = fields.boolean("split_special_tokens", false);
    has_decoder = fields.find("added_tokens_decoder") != nullptr;
    if (has_decoder) read_decoder(fields.object("added_tokens_decoder"), fields.get("added_tokens_decoder"), config);
  }
  if (const std::string path = existing(folder, "special_tokens_map.json"); !path.empty()) {
    const json document = read_tokenizer_document(path);
    Fields fields(document, path, "");
    const TokenizerConfig first = config;
    read_names(fields, config);
    if (has_decoder) {  // the map is of an older form of the folder: it says only what nobody else says
      for (std::string TokenizerConfig::*name : {&TokenizerConfig::bos_token, &TokenizerConfig::eos_token,
                                                 &TokenizerConfig::unk_token, &TokenizerConfig::pad_token})
        if (!(first.*name).empty()) config.*name = first.*name;
    }
  }
  if (const std::string path = existing(folder, "added_tokens.json"); !path.empty() && !has_decoder)
    read_added(path, config);
  std::sort(config.added_tokens.begin(), config.added_tokens.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return config;
}

}  // namespace zs
