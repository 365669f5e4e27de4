#include "model/families/gguf_tokenizer.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "model/families/gguf_pre_tokenizer.h"
#include "model/json/strict_json.h"
#include "model/tokenizer/sentencepiece_model.h"
#include "model/tokenizer/tokenizer_config.h"
#include "model/weights/regular_file.h"
#include "runtime/base/parse_integer.h"

namespace zs {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Null where there is none.
json json_of(const std::string& path) {
  std::error_code failed;
  if (path.empty() || !fs::is_regular_file(path, failed)) return nullptr;
  const auto own = file_of_model(fs::path(path).parent_path().string(), fs::path(path).filename().string());
  if (!own) return nullptr;  // a link that leads out of the model's folder
  return parse_document(read_text_file(*own, ReaderLimits::kTokenizerBytes), path, ReaderLimits::kTokenizerTreeBytes);
}

json member(const json& object, const char* key) { return object.is_object() ? object.value(key, json()) : json(); }

/// One entry for each id of the model.
class GgufVocabulary {
 public:
  explicit GgufVocabulary(std::int64_t size)
      : tokens_(static_cast<std::size_t>(size)), kinds_(tokens_.size(), unused), scores_(tokens_.size(), kNoScore) {
    for (std::size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = fmt::format("[PAD{}]", i);
  }

  /// Sets the token of an id; one without an embedding is left out, and remembered.
  void set(std::size_t id, const std::string& text, PieceKind kind) {
    if (id < tokens_.size()) {
      tokens_[id] = text, kinds_[id] = static_cast<std::int32_t>(kind);
    } else {
      beyond_[id] = text;
    }
  }
  std::optional<std::int64_t> find(const std::string& text) const {
    const auto found = text.empty() ? tokens_.end() : std::find(tokens_.begin(), tokens_.end(), text);
    return found == tokens_.end() ? std::nullopt : std::optional<std::int64_t>(found - tokens_.begin());
  }
  /// A line about what was left out; empty: nothing was.
  std::string left_out() const {
    constexpr int kMost = 5;
    std::string names;
    int count = 0;
    for (const auto& [id, text] : beyond_)
      if (++count <= kMost) names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", shortened(text), id);
    if (count == 0) return "";
    return fmt::format("left out, since the model has embeddings of {} tokens: {}{}", tokens_.size(), names,
                       count > kMost ? fmt::format(" and {} more", count - kMost) : "");
  }
  void set_score(std::size_t id, float score) {
    if (id < scores_.size()) scores_[id] = score;
  }
  void write(GgufFields& fields, bool has_scores) const {
    fields.add("tokenizer.ggml.tokens", tokens_);
    fields.add("tokenizer.ggml.token_type", kinds_);
    if (has_scores) fields.add("tokenizer.ggml.scores", scores_);
  }

 private:
  static constexpr float kNoScore = -1e6f;  // below all that merges make
  static constexpr auto unused = static_cast<std::int32_t>(PieceKind::unused);
  std::vector<std::string> tokens_;
  std::vector<std::int32_t> kinds_;
  std::vector<float> scores_;
  std::map<std::size_t, std::string> beyond_;
};

/// The files of a tokenizer, and what goes into the GGUF file of them.
struct GgufTokenizer {
  TokenizerFiles files;
  TokenizerConfig config;
  GgufVocabulary vocabulary;
};

/// Special tokens around a text, and ids.
struct SpecialIds {
  std::optional<bool> adds_bos = {}, adds_eos = {};  ///< nothing: nobody says
  std::optional<std::int64_t> bos = {}, eos = {}, unk = {}, pad = {};
};

void add_token_list(GgufVocabulary& vocabulary, const json& list) {
  for (const json& token : list)
    vocabulary.set(token.at("id").get<std::size_t>(), token.at("content").get<std::string>(),
                   token.value("special", false) ? PieceKind::control : PieceKind::user_defined);
}

/// Tokens that the files beside it add.
void add_others(GgufTokenizer& to) {
  for (const AddedToken& token : to.config.added_tokens)
    to.vocabulary.set(static_cast<std::size_t>(token.id), token.content,
                      token.special ? PieceKind::control : PieceKind::user_defined);
}

/// The special token at one end of what a post-processor makes of a text.
std::optional<std::int64_t> id_at_end(const json& processor, bool is_front) {
  for (const json& inner : member(processor, "processors"))
    if (const auto id = id_at_end(inner, is_front)) return id;
  const json single = member(processor, "single");
  if (!single.is_array() || single.empty()) return std::nullopt;
  const json token = member(is_front ? single.front() : single.back(), "SpecialToken");
  if (token.is_null()) return std::nullopt;
  return processor.at("special_tokens").at(token.at("id").get<std::string>()).at("ids").at(0).get<std::int64_t>();
}

std::pair<std::string, std::string> halves_of(const json& merge) {
  if (!merge.is_string()) return {merge.at(0).get<std::string>(), merge.at(1).get<std::string>()};
  const std::string text = merge.get<std::string>();
  const std::size_t space = text.find(' ', 1);
  return {text.substr(0, space), text.substr(std::min(space, text.size() - 1) + 1)};
}

/// A BPE of tokenizer.json. llama.cpp merges a byte-level one as it says; of one with byte fallback it goes by the
/// scores of what merges make, which are the merges' order here.
SpecialIds add_bpe(GgufFields& fields, const json& tokenizer, GgufTokenizer& to) {
  const json& bpe = tokenizer.at("model");
  const bool has_bytes = bpe.value("byte_fallback", false);
  GgufVocabulary& vocabulary = to.vocabulary;
  SpecialIds ids;
  const json unk = bpe.value("unk_token", json());
  for (const auto& [text, id] : bpe.at("vocab").items()) {
    const bool is_byte = has_bytes && text.size() == 6 && text.starts_with("<0x");
    vocabulary.set(id.get<std::size_t>(), text, is_byte ? PieceKind::byte : PieceKind::normal);
    if (unk == text) ids.unk = id.get<std::int64_t>();
  }
  add_token_list(vocabulary, tokenizer.value("added_tokens", json::array()));
  add_others(to);
  if (ids.unk && has_bytes)
    vocabulary.set(static_cast<std::size_t>(*ids.unk), unk.get<std::string>(), PieceKind::unknown);
  std::vector<std::string> merges;
  std::map<std::string, float> order;
  for (const json& merge : bpe.at("merges")) {
    const auto [left, right] = halves_of(merge);
    merges.push_back(left + " " + right);
    order.try_emplace(left + right, -static_cast<float>(order.size()));
  }
  for (const auto& [text, score] : order)
    if (const auto id = bpe.at("vocab").find(text); id != bpe.at("vocab").end())
      vocabulary.set_score(id->get<std::size_t>(), score);
  fields.add("tokenizer.ggml.model", std::string(has_bytes ? "llama" : "gpt2"));
  fields.add("tokenizer.ggml.pre", has_bytes ? "default" : gguf_pre_tokenizer(tokenizer, to.files.json));
  vocabulary.write(fields, has_bytes);
  if (!has_bytes) fields.add("tokenizer.ggml.merges", merges);
  const json processor = member(tokenizer, "post_processor");
  const auto first = id_at_end(processor, true), last = id_at_end(processor, false);
  ids.adds_bos = first.has_value(), ids.adds_eos = last.has_value();
  ids.bos = first, ids.eos = last;
  return ids;
}

/// A tokenizer.model. llama.cpp's "llama" is a BPE with byte fallback, and its "t5" a unigram model.
SpecialIds add_pieces(GgufFields& fields, GgufTokenizer& to) {
  const std::string& path = to.files.pieces;
  const SentencePieceModel model = read_sentencepiece_model(path);
  const bool is_unigram = model.type == SentencePieceModel::Type::unigram;
  if ((!is_unigram && model.type != SentencePieceModel::Type::bpe) || (is_unigram && model.has_bytes))
    throw Error(ExitCode::model, "llama.cpp has no tokenizer of this kind: a BPE, or a unigram model without bytes",
                path, "export without it");
  GgufVocabulary& vocabulary = to.vocabulary;
  add_others(to);
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    vocabulary.set(id, model.pieces[id].text, model.pieces[id].kind);
    vocabulary.set_score(id, model.pieces[id].score);
  }
  fields.add("tokenizer.ggml.model", std::string(is_unigram ? "t5" : "llama"));
  fields.add("tokenizer.ggml.pre", std::string("default"));
  vocabulary.write(fields, true);
  fields.add("tokenizer.ggml.add_space_prefix", model.adds_space);
  fields.add("tokenizer.ggml.remove_extra_whitespaces", model.removes_spaces);
  if (is_unigram && !model.character_map.empty())
    fields.add_bytes("tokenizer.ggml.precompiled_charsmap", model.character_map);
  const auto id_of = [](int id) { return id < 0 ? std::nullopt : std::optional<std::int64_t>(id); };
  return {.adds_bos = to.config.add_bos_token,
          .adds_eos = to.config.add_eos_token,
          .bos = id_of(model.bos),
          .eos = id_of(model.eos),
          .unk = id_of(model.unk),
          .pad = id_of(model.pad)};
}

/// The tokenizer's own files go first: documents end with that token. Then config.json, then the tokenizer itself.
void add_special_ids(GgufFields& fields, SpecialIds ids, const GgufTokenizer& from, const ModelConfig& model) {
  const json config = model.path.empty() ? json() : json_of((fs::path(model.path) / "config.json").string());
  const TokenizerConfig& names = from.config;
  for (const auto& [theirs, name, own] : {std::tuple("bos_token_id", &names.bos_token, &ids.bos),
                                          {"eos_token_id", &names.eos_token, &ids.eos},
                                          {"pad_token_id", &names.pad_token, &ids.pad},
                                          {"unk_token_id", &names.unk_token, &ids.unk}}) {
    json id = member(config, theirs);
    if (id.is_array() && !id.empty()) id = json(id.front());
    if (id.is_number_unsigned()) *own = id.get<std::int64_t>();
    if (const auto named = from.vocabulary.find(*name)) *own = *named;
  }
  for (const auto& [key, id] : {std::pair("bos_token_id", ids.bos),
                                {"eos_token_id", ids.eos},
                                {"unknown_token_id", ids.unk},
                                {"padding_token_id", ids.pad}})
    if (id && *id < model.vocab) fields.add(fmt::format("tokenizer.ggml.{}", key), *id);
  if (ids.adds_bos) fields.add("tokenizer.ggml.add_bos_token", *ids.adds_bos);
  if (ids.adds_eos) fields.add("tokenizer.ggml.add_eos_token", *ids.adds_eos);
}

/// Templates by their names, of which "default" is the one that counts.
void add_chat_templates(GgufFields& fields, const std::map<std::string, std::string>& templates) {
  std::vector<std::string> names;
  for (const auto& [name, text] : templates) {
    std::string plain = name;
    std::replace_if(
        plain.begin(), plain.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
    if (plain == "default") {
      fields.add("tokenizer.chat_template", text);
    } else {
      fields.add("tokenizer.chat_template." + plain, text);
      names.push_back(plain);
    }
  }
  if (!names.empty()) fields.add("tokenizer.chat_templates", names);
}

/// Chat templates; files of their own go before tokenizer_config.json.
std::map<std::string, std::string> chat_templates(const fs::path& folder) {
  std::map<std::string, std::string> templates;
  std::error_code failed;
  const auto add_file = [&](const std::string& name, const fs::path& path) {
    if (fs::is_regular_file(path, failed))
      templates[name] = read_text_file(path.string(), ReaderLimits::kCompanionBytes);
  };
  add_file("default", folder / "chat_template.jinja");
  for (const fs::directory_entry& entry : fs::directory_iterator(folder / "additional_chat_templates", failed))
    if (entry.path().extension() == ".jinja") add_file(entry.path().stem().string(), entry.path());
  for (const char* const file : {"tokenizer_config.json", "chat_template.json"}) {
    const json value = member(json_of((folder / file).string()), "chat_template");
    if (value.is_string()) templates.emplace("default", value.get<std::string>());
    for (const json& one : value.is_array() ? value : json::array())
      templates.emplace(one.at("name").get<std::string>(), one.at("template").get<std::string>());
  }
  return templates;
}

}  // namespace

std::vector<std::string> add_gguf_tokenizer(GgufFields& fields, const ModelConfig& model,
                                            const std::string& tokenizer) {
  GgufTokenizer to{
      tokenizer.empty() ? TokenizerFiles() : find_tokenizer_files(tokenizer), {}, GgufVocabulary(model.vocab)};
  const json document = json_of(to.files.json);
  if (document.is_null() && to.files.pieces.empty()) {
    fields.add("tokenizer.ggml.model", std::string("none"));
    return {};
  }
  to.config = read_tokenizer_config(to.files.folder);
  const bool is_byte_level = document.is_object() && member(member(document, "model"), "byte_fallback") != true;
  const bool is_of_pieces = !to.files.pieces.empty() && !is_byte_level;
  try {
    const SpecialIds ids = is_of_pieces ? add_pieces(fields, to) : add_bpe(fields, document, to);
    add_special_ids(fields, ids, to, model);
    add_chat_templates(fields, chat_templates(to.files.folder));
  } catch (const json::exception&) {
    throw Error(ExitCode::model, "this is no tokenizer that GGUF can hold: a BPE or SentencePiece's is wanted",
                is_of_pieces ? to.files.pieces : to.files.json, "export without it");
  }
  const std::string left_out = to.vocabulary.left_out();
  return left_out.empty() ? std::vector<std::string>() : std::vector{left_out};
}

}  // namespace zs
