#include "model/tokenizer/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>
#include <xxhash.h>

#include <algorithm>
#include <array>

#include "model/tokenizer/sentencepiece_model.h"
#include "model/tokenizer/utf8.h"
#include "model/tokenizer/word_cache.h"
#include "runtime/base/check.h"

namespace zs {
namespace {

using sentencepiece::SentencePieceProcessor;

/// True if a text is the same as its words one by one, where single spaces part them: no piece has a space but in
/// front, where a word alone gets one, too, and no map of characters changes more than its neighbours. Not of a unigram
/// model: it adds up scores over a whole text, and what gets lost there in rounding would not be lost over a word.
bool is_cut_at_spaces(const SentencePieceModel& model) {
  constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581
  constexpr std::array<std::string_view, 5> kMaps = {"identity", "nfkc", "nfkc_cf", "nmt_nfkc", "nmt_nfkc_cf"};
  const bool is_known =
      model.character_map.empty() || std::find(kMaps.begin(), kMaps.end(), model.map_name) != kMaps.end();
  if (model.type != SentencePieceModel::Type::bpe || !is_known) return false;
  if (!model.adds_space || !model.marks_spaces || model.marks_behind) return false;
  bool has_space = false;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    std::string_view rest = piece.text;
    while (rest.starts_with(kSpace)) rest.remove_prefix(kSpace.size());
    if (rest.find(kSpace) != rest.npos || rest.find(' ') != rest.npos) return false;
    has_space = has_space || (piece.text == kSpace && piece.kind == PieceKind::normal);
  }
  return has_space;
}

/// A character beside which a space can part a text: no space of any kind, and nothing that a map makes one of.
bool is_plain(char32_t c) { return (c > 0x20 && c < 0x7f) || (c >= 0xc0 && c < 0x2b0) || (c >= 0x400 && c < 0x530); }

/// End of the word that begins at `begin`: at such a space, or at the text's end.
std::size_t word_end(std::string_view text, std::size_t begin) {
  for (std::size_t at = text.find(' ', begin + 1); at != text.npos; at = text.find(' ', at + 1)) {
    if (at + 1 == text.size() || !is_plain(utf8_at(text, at + 1))) continue;
    std::size_t last = at - 1;
    while (is_utf8_continuation(text[last])) --last;
    if (is_plain(utf8_at(text, last))) return at;
  }
  return text.size();
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& path, const TokenizerConfig& config) : path_(path), config_(config) {
    is_cut_at_spaces_ = is_cut_at_spaces(load_sentencepiece(path, processor_));
    if (processor_.eos_id() >= 0) end_of_text_ = processor_.eos_id();
    if ((config.add_bos_token && processor_.bos_id() < 0) || (config.add_eos_token && processor_.eos_id() < 0))
      throw Error(ExitCode::model, "tokenizer_config.json adds a token that the model does not have", path,
                  "correct add_bos_token or add_eos_token");
  }

  std::unique_ptr<Encoder> make_encoder() const override { return std::make_unique<PieceEncoder>(*this); }

  std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const override {
    std::vector<int> known;
    for (const std::int32_t id : ids)
      if (id >= 0 && id < vocab_size() && !(skip_special_tokens && processor_.IsControl(id))) known.push_back(id);
    std::string text;
    check(processor_.Decode(known, &text));
    return text;
  }

  std::int32_t vocab_size() const override { return processor_.GetPieceSize(); }
  std::optional<std::int32_t> token_to_id(std::string_view token) const override {
    const int id = processor_.PieceToId(token);
    return id >= 0 && id < vocab_size() && processor_.IdToPiece(id) == token ? std::optional(id) : std::nullopt;
  }
  std::optional<std::string> id_to_token(std::int32_t id) const override {
    return id >= 0 && id < vocab_size() ? std::optional(processor_.IdToPiece(id)) : std::nullopt;
  }

 private:
  class PieceEncoder : public Encoder {
   public:
    explicit PieceEncoder(const SentencePieceTokenizer& owner) : owner_(owner) {}
    void encode(std::string_view text, bool add_special_tokens, std::vector<std::int32_t>& out) override {
      if (const std::size_t invalid = find_invalid_utf8(text); invalid != kValidUtf8)
        throw Error(ExitCode::dataset, "the text is not valid UTF-8", fmt::format("byte {}", invalid),
                    "convert it to UTF-8");
      if (add_special_tokens && owner_.config_.add_bos_token) out.push_back(owner_.processor_.bos_id());
      for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = owner_.is_cut_at_spaces_ ? word_end(text, begin) : text.size();
        encode_part(text.substr(begin, end - begin), out);
        begin = end + 1;
      }
      if (add_special_tokens && owner_.config_.add_eos_token) out.push_back(owner_.processor_.eos_id());
    }

   private:
    void encode_part(std::string_view part, std::vector<std::int32_t>& out) {
      const bool is_short = part.size() <= WordCache::kLongestWord;
      const std::uint64_t hash = is_short ? XXH3_64bits(part.data(), part.size()) : 0;
      if (const WordCache::Ids known = is_short ? cache_.find(part, hash) : WordCache::Ids{}; known.data != nullptr) {
        out.insert(out.end(), known.data, known.data + known.size);
        return;
      }
      owner_.check(owner_.processor_.Encode(part, &ids_));
      out.insert(out.end(), ids_.begin(), ids_.end());
      if (is_short && ids_.size() <= WordCache::kMostIds) cache_.insert(part, hash, ids_);
    }

    const SentencePieceTokenizer& owner_;
    WordCache cache_;
    std::vector<int> ids_;
  };

  void check(const sentencepiece::util::Status& status) const {
    if (!status.ok()) throw Error(ExitCode::model, fmt::format("SentencePiece: {}", status.ToString()), path_);
  }

  std::string path_;
  bool is_cut_at_spaces_ = false;
  TokenizerConfig config_;
  SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& path, const TokenizerConfig& config) {
  return std::make_unique<SentencePieceTokenizer>(path, config);
}

}  // namespace zs
