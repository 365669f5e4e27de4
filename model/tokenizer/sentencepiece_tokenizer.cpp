#include "model/tokenizer/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/read_file.h"
#include "model/tokenizer/sentencepiece_model.h"
#include "model/tokenizer/token_places.h"
#include "model/tokenizer/utf8.h"
#include "model/tokenizer/word_cache.h"
#include "runtime/base/check.h"

namespace zs {
namespace {

using sentencepiece::SentencePieceProcessor;

constexpr std::string_view kMetaspace = "\xe2\x96\x81";  // U+2581

/// True if a text is the same as its words one by one, where single spaces part them: no piece has a space but in
/// front, where a word alone gets one, too, and no map of characters changes more than its neighbours. Not of a unigram
/// model: it adds up scores over a whole text, and what gets lost there in rounding would not be lost over a word.
bool is_cut_at_spaces(const SentencePieceModel& model) {
  constexpr std::array<std::string_view, 5> kMaps = {"identity", "nfkc", "nfkc_cf", "nmt_nfkc", "nmt_nfkc_cf"};
  const bool is_known =
      model.character_map.empty() || std::find(kMaps.begin(), kMaps.end(), model.map_name) != kMaps.end();
  if (model.type != SentencePieceModel::Type::bpe || !is_known) return false;
  if (!model.adds_space || !model.marks_spaces || model.marks_behind) return false;
  bool has_space = false;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    std::string_view rest = piece.text;
    while (rest.starts_with(kMetaspace)) rest.remove_prefix(kMetaspace.size());
    if (rest.find(kMetaspace) != rest.npos || rest.find(' ') != rest.npos) return false;
    has_space = has_space || (piece.text == kMetaspace && piece.kind == PieceKind::normal);
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

/// Bytes behind a model with which SentencePiece puts no space before a text: of a field that occurs twice the later
/// counts (normalizer_spec.add_dummy_prefix = false).
constexpr std::string_view kNoPrefix("\x1a\x02\x18\x00", 4);

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& path, const TokenizerConfig& config)
      : path_(path), adds_prefix_(config.add_prefix_space.value_or(true)), is_legacy_(config.is_legacy) {
    is_cut_at_spaces_ = is_cut_at_spaces(load_sentencepiece(path, processor_));
    if (processor_.bos_id() >= 0) begin_of_text_ = processor_.bos_id();
    if (processor_.eos_id() >= 0) end_of_text_ = processor_.eos_id();
    set_frame(config);
    add_tokens(config);
    if (!added_.empty() || !adds_prefix_) load(read_tokenizer_file(path) + std::string(kNoPrefix), plain_);
  }

  std::unique_ptr<Encoder> make_encoder() const override { return std::make_unique<PieceEncoder>(*this); }

  std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const override {
    std::string text;
    std::vector<int> run;
    const auto end_run = [&] {
      if (run.empty()) return;
      std::string piece;
      check(processor_.Decode(run, &piece));
      if (!text.empty() && processor_.IdToPiece(run.front()).starts_with(kMetaspace)) text += ' ';  // not the first
      text += piece;
      run.clear();
    };
    for (const std::int32_t id : ids) {
      const auto added = std::find_if(added_.begin(), added_.end(), [&](const auto& token) { return token.id == id; });
      if (added != added_.end()) {
        end_run();
        if (!(skip_special_tokens && added->special)) text += added->content;
      } else if (id >= 0 && id < processor_.GetPieceSize() && !(skip_special_tokens && processor_.IsControl(id))) {
        run.push_back(id);
      }
    }
    end_run();
    return text;
  }

  std::int32_t vocab_size() const override { return vocab_size_; }
  std::optional<std::int32_t> token_to_id(std::string_view token) const override {
    for (const AddedToken& added : added_)
      if (added.content == token) return added.id;
    return piece_id(token);
  }
  std::optional<std::string> id_to_token(std::int32_t id) const override {
    for (const AddedToken& added : added_)
      if (added.id == id) return added.content;
    return id >= 0 && id < processor_.GetPieceSize() ? std::optional(processor_.IdToPiece(id)) : std::nullopt;
  }
  std::string surface(std::int32_t id) const override {
    for (const AddedToken& added : added_)
      if (added.id == id) return added.content;
    return plain_piece(id_to_token(id).value_or(""));
  }
  bool is_special(std::int32_t id) const override {
    const auto added = std::find_if(added_.begin(), added_.end(), [&](const auto& token) { return token.id == id; });
    return added != added_.end() ? added->special
                                 : id >= 0 && id < processor_.GetPieceSize() && processor_.IsControl(id);
  }

 private:
  class PieceEncoder : public Encoder {
   public:
    explicit PieceEncoder(const SentencePieceTokenizer& owner) : owner_(owner) {}
    void encode(std::string_view text, bool add_special_tokens, std::vector<std::int32_t>& out,
                std::vector<EncodedPart>* parts) override {
      if (const std::size_t invalid = find_invalid_utf8(text); invalid != kValidUtf8)
        throw Error(ExitCode::dataset, "the text is not valid UTF-8", fmt::format("byte {}", invalid),
                    "convert it to UTF-8");
      const SpecialFrame& frame = owner_.frame_;
      if (add_special_tokens) out.insert(out.end(), frame.before.begin(), frame.before.end());
      owner_.matcher_->split(text, scratch_, [&](std::size_t begin, std::size_t end, const AddedToken* token) {
        if (parts != nullptr) parts->push_back({begin, end, out.size(), token != nullptr});
        if (token != nullptr) {
          out.push_back(token->id);
        } else {
          encode_words(text.substr(begin, end - begin), owner_.adds_prefix_ && (begin == 0 || owner_.is_legacy_), out);
        }
      });
      if (add_special_tokens) out.insert(out.end(), frame.behind.begin(), frame.behind.end());
    }

   private:
    /// `has_prefix`: a space goes before the first word, as before every other one.
    void encode_words(std::string_view text, bool has_prefix, std::vector<std::int32_t>& out) {
      for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = owner_.is_cut_at_spaces_ ? word_end(text, begin) : text.size();
        const std::string_view word = text.substr(begin, end - begin);
        begin == 0 && !has_prefix ? encode_word(owner_.plain_, word, plain_cache_, out)
                                  : encode_word(owner_.processor_, word, cache_, out);
        begin = end + 1;
      }
    }

    void encode_word(const SentencePieceProcessor& processor, std::string_view word, WordCache& cache,
                     std::vector<std::int32_t>& out) {
      const bool is_short = word.size() <= WordCache::kLongestWord;
      const std::uint64_t hash = is_short ? XXH3_64bits(word.data(), word.size()) : 0;
      if (const WordCache::Ids known = is_short ? cache.find(word, hash) : WordCache::Ids{}; known.data != nullptr) {
        out.insert(out.end(), known.data, known.data + known.size);
        return;
      }
      owner_.check(processor.Encode(word, &ids_));
      out.insert(out.end(), ids_.begin(), ids_.end());
      if (is_short && ids_.size() <= WordCache::kMostIds) cache.insert(word, hash, ids_);
    }

    const SentencePieceTokenizer& owner_;
    Regex::Scratch scratch_;
    WordCache cache_, plain_cache_;
    std::vector<int> ids_;
  };

  void load(const std::string& bytes, SentencePieceProcessor& processor) const {
    const auto status = processor.LoadFromSerializedProto(bytes);
    if (!status.ok())
      throw Error(ExitCode::model, fmt::format("this is no SentencePiece model: {}", status.ToString()), path_,
                  "fetch it again");
  }

  void set_frame(const TokenizerConfig& config) {
    const bool adds_bos = config.add_bos_token.value_or(false), adds_eos = config.add_eos_token.value_or(false);
    if ((adds_bos && processor_.bos_id() < 0) || (adds_eos && processor_.eos_id() < 0))
      throw Error(ExitCode::model, "tokenizer_config.json adds a token that the model does not have", path_,
                  "correct add_bos_token or add_eos_token");
    if (adds_bos) frame_.before = {processor_.bos_id()};
    if (adds_eos) frame_.behind = {processor_.eos_id()};
  }

  /// Tokens beside the model's, and those of the model that the files beside it give a part: both are found in a text.
  void add_tokens(const TokenizerConfig& config) {
    added_ = config.added_tokens;
    for (const std::string& name : {config.bos_token, config.eos_token, config.unk_token, config.pad_token}) {
      const bool is_known = std::any_of(added_.begin(), added_.end(), [&](const auto& t) { return t.content == name; });
      const auto id = name.empty() || is_known ? std::nullopt : piece_id(name);
      if (id) added_.push_back({.id = *id, .content = name, .special = true});
    }
    std::erase_if(added_, [](const AddedToken& token) { return token.content.empty(); });
    std::vector<AddedTokenMatcher::Pattern> patterns;
    vocab_size_ = processor_.GetPieceSize();
    for (const AddedToken& token : added_) {
      patterns.push_back({token.content, token});
      vocab_size_ = std::max(vocab_size_, token.id + 1);
    }
    matcher_ = std::make_unique<AddedTokenMatcher>(patterns, config.split_special_tokens);
  }

  std::optional<std::int32_t> piece_id(std::string_view token) const {
    const int id = processor_.PieceToId(token);
    return id >= 0 && id < processor_.GetPieceSize() && processor_.IdToPiece(id) == token ? std::optional(id)
                                                                                          : std::nullopt;
  }

  void check(const sentencepiece::util::Status& status) const {
    if (!status.ok()) throw Error(ExitCode::model, fmt::format("SentencePiece: {}", status.ToString()), path_);
  }

  std::string path_;
  bool is_cut_at_spaces_ = false, adds_prefix_, is_legacy_;
  std::int32_t vocab_size_ = 0;
  std::vector<AddedToken> added_;
  std::unique_ptr<AddedTokenMatcher> matcher_;
  SentencePieceProcessor processor_, plain_;  // plain_: without a space before a text
};

}  // namespace

std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& path, const TokenizerConfig& config) {
  return std::make_unique<SentencePieceTokenizer>(path, config);
}

}  // namespace zs
