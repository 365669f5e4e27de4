#include "model/families/gguf_tokenizer.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "model/json/strict_json.h"
#include "model/tokenizer/sentencepiece_model.h"
#include "model/weights/regular_file.h"
#include "runtime/base/parse_integer.h"

namespace zs {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char *kJson = "tokenizer.json", *kPieces = "tokenizer.model";

bool is_file(const std::string& folder, const char* name) {
  std::error_code failed;
  return !folder.empty() && fs::is_regular_file(fs::path(folder) / name, failed);
}

/// Null where there is none.
json folder_json(const std::string& folder, const char* name) {
  if (!is_file(folder, name)) return nullptr;
  const std::string path = (fs::path(folder) / name).string();
  return parse_document(read_text_file(path, ReaderLimits::kTokenizerBytes), path, ReaderLimits::kTokenizerTreeBytes);
}

json member(const json& object, const char* key) { return object.is_object() ? object.value(key, json()) : json(); }

/// One entry for each id of the model.
class GgufVocabulary {
 public:
  explicit GgufVocabulary(std::int64_t size)
      : tokens_(static_cast<std::size_t>(size)), kinds_(tokens_.size(), unused), scores_(tokens_.size(), kNoScore) {
    for (std::size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = fmt::format("[PAD{}]", i);
  }

  /// Sets a token; one that the model has no id for is left out.
  void set(std::size_t id, const std::string& text, PieceKind kind) {
    if (id < tokens_.size()) tokens_[id] = text, kinds_[id] = static_cast<std::int32_t>(kind);
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
};

/// Ids that stand around a text, and those that config.json does not say.
struct SpecialIds {
  std::optional<bool> adds_bos = {}, adds_eos = {};  ///< nothing: nobody says
  std::optional<std::int64_t> bos = {}, eos = {}, unk = {}, pad = {};
};

void add_token_list(GgufVocabulary& vocabulary, const json& list) {
  for (const json& token : list)
    vocabulary.set(token.at("id").get<std::size_t>(), token.at("content").get<std::string>(),
                   token.value("special", false) ? PieceKind::control : PieceKind::user_defined);
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
SpecialIds add_bpe(GgufFields& fields, const json& tokenizer, const GgufFamily& family, std::int64_t vocab) {
  const json& bpe = tokenizer.at("model");
  const bool has_bytes = bpe.value("byte_fallback", false);
  GgufVocabulary vocabulary(vocab);
  SpecialIds ids;
  const json unk = bpe.value("unk_token", json());
  for (const auto& [text, id] : bpe.at("vocab").items()) {
    const bool is_byte = has_bytes && text.size() == 6 && text.starts_with("<0x");
    vocabulary.set(id.get<std::size_t>(), text, is_byte ? PieceKind::byte : PieceKind::normal);
    if (unk == text) ids.unk = id.get<std::int64_t>();
  }
  add_token_list(vocabulary, tokenizer.value("added_tokens", json::array()));
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
  fields.add("tokenizer.ggml.pre", std::string(has_bytes ? "default" : family.pre_tokenizer));
  vocabulary.write(fields, has_bytes);
  if (!has_bytes) fields.add("tokenizer.ggml.merges", merges);
  const json processor = member(tokenizer, "post_processor");
  const auto first = id_at_end(processor, true), last = id_at_end(processor, false);
  ids.adds_bos = first.has_value(), ids.adds_eos = last.has_value();
  ids.bos = first, ids.eos = last;
  return ids;
}

/// Tokens that transformers has beside those of the model.
void add_others(GgufVocabulary& vocabulary, const std::string& folder) {
  const json added = folder_json(folder, "added_tokens.json"),
             decoder = member(folder_json(folder, "tokenizer_config.json"), "added_tokens_decoder");
  for (const auto& [text, id] : added.items()) vocabulary.set(id.get<std::size_t>(), text, PieceKind::user_defined);
  for (const auto& [id, token] : decoder.items())
    vocabulary.set(parse_integer<std::size_t>(id).value_or(SIZE_MAX), token.at("content").get<std::string>(),
                   token.value("special", false) ? PieceKind::control : PieceKind::user_defined);
}

/// A tokenizer.model. llama.cpp's "llama" is a BPE with byte fallback, and its "t5" a unigram model.
SpecialIds add_pieces(GgufFields& fields, const std::string& folder, std::int64_t vocab) {
  const std::string path = (fs::path(folder) / kPieces).string();
  const SentencePieceModel model = read_sentencepiece_model(path);
  const bool is_unigram = model.type == SentencePieceModel::Type::unigram;
  if ((!is_unigram && model.type != SentencePieceModel::Type::bpe) || (is_unigram && model.has_bytes))
    throw Error(ExitCode::model, "llama.cpp has no tokenizer of this kind: a BPE, or a unigram model without bytes",
                path, "export without it");
  GgufVocabulary vocabulary(vocab);
  add_others(vocabulary, folder);
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
  SpecialIds ids{.bos = id_of(model.bos), .eos = id_of(model.eos), .unk = id_of(model.unk), .pad = id_of(model.pad)};
  const json config = folder_json(folder, "tokenizer_config.json");
  if (const json adds = member(config, "add_bos_token"); adds.is_boolean()) ids.adds_bos = adds.get<bool>();
  if (const json adds = member(config, "add_eos_token"); adds.is_boolean()) ids.adds_eos = adds.get<bool>();
  return ids;
}

void add_special_ids(GgufFields& fields, SpecialIds ids, const ModelConfig& model) {
  const json config = folder_json(model.path, "config.json");
  for (const auto& [theirs, own] :
       {std::pair("bos_token_id", &ids.bos), {"eos_token_id", &ids.eos}, {"pad_token_id", &ids.pad}}) {
    json id = member(config, theirs);
    if (id.is_array() && !id.empty()) id = json(id.front());
    if (id.is_number_unsigned()) *own = id.get<std::int64_t>();
  }
  for (const auto& [key, id] : {std::pair("bos_token_id", ids.bos),
                                {"eos_token_id", ids.eos},
                                {"unknown_token_id", ids.unk},
                                {"padding_token_id", ids.pad}})
    if (id && *id < model.vocab) fields.add(fmt::format("tokenizer.ggml.{}", key), *id);
  if (ids.adds_bos) fields.add("tokenizer.ggml.add_bos_token", *ids.adds_bos);
  if (ids.adds_eos) fields.add("tokenizer.ggml.add_eos_token", *ids.adds_eos);
}

}  // namespace

void add_gguf_tokenizer(GgufFields& fields, const GgufFamily& family, const ModelConfig& model) {
  const json tokenizer = folder_json(model.path, kJson);
  const bool has_pieces = is_file(model.path, kPieces);
  if (tokenizer.is_null() && !has_pieces) return fields.add("tokenizer.ggml.model", std::string("none"));
  const bool is_byte_level = tokenizer.is_object() && member(member(tokenizer, "model"), "byte_fallback") != true;
  const bool is_of_pieces = has_pieces && !is_byte_level;
  try {
    const SpecialIds ids =
        is_of_pieces ? add_pieces(fields, model.path, model.vocab) : add_bpe(fields, tokenizer, family, model.vocab);
    add_special_ids(fields, ids, model);
  } catch (const json::exception&) {
    throw Error(ExitCode::model, "this is no tokenizer that GGUF can hold: a BPE or SentencePiece's is wanted",
                model.path + "/" + (is_of_pieces ? kPieces : kJson), "export without it");
  }
}

}  // namespace zs
