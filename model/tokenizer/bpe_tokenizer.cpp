#include "model/tokenizer/bpe_tokenizer.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "model/tokenizer/normalize.h"
#include "model/tokenizer/token_places.h"
#include "model/tokenizer/utf8.h"
#include "model/tokenizer/word_cache.h"
#include "runtime/base/check.h"
#include "runtime/base/reader_limits.h"

namespace zs {
namespace {

using StepKind = PreTokenizerStep::Kind;

/// True if the model gets words in GPT-2's alphabet.
bool check_byte_level(const TokenizerSpec& spec, const std::string& path) {
  const auto& steps = spec.pre_tokenizer;
  const auto is_byte_level = [](const PreTokenizerStep& step) { return step.kind == StepKind::byte_level; };
  if (!steps.empty() && std::any_of(steps.begin(), steps.end() - 1, is_byte_level))
    throw Error(ExitCode::model,
                "pre_tokenizer has a ByteLevel before another step, which is not supported, and it changes the ids",
                path, "use a tokenizer without it");
  return !steps.empty() && is_byte_level(steps.back());
}

/// A space that the first step puts before a text, or not, as tokenizer_config.json asks.
void set_prefix_space(TokenizerSpec& spec, const TokenizerConfig& config) {
  const bool adds = *config.add_prefix_space;
  if (!adds)
    std::erase_if(spec.normalizer, [](const auto& step) { return step.kind == NormalizerStep::Kind::prepend; });
  if (spec.pre_tokenizer.size() != 1) return;
  PreTokenizerStep& step = spec.pre_tokenizer.front();
  if (step.kind == StepKind::byte_level) step.add_prefix_space = adds;
  if (step.kind != StepKind::metaspace || adds == (step.prepend_scheme != PrependScheme::never)) return;
  step.prepend_scheme = !adds ? PrependScheme::never : config.is_legacy ? PrependScheme::always : PrependScheme::first;
}

/// Changes and additions of the files beside tokenizer.json.
TokenizerSpec with_config(TokenizerSpec spec, const TokenizerConfig& config) {
  if (config.add_prefix_space) set_prefix_space(spec, config);
  for (const AddedToken& token : config.added_tokens) {
    const auto known = std::find_if(spec.added_tokens.begin(), spec.added_tokens.end(),
                                    [&](const AddedToken& other) { return other.content == token.content; });
    if (known == spec.added_tokens.end()) {
      spec.added_tokens.push_back(token);
    } else {
      const std::int32_t id = known->id;
      *known = token;
      known->id = id;
    }
  }
  return spec;
}

}  // namespace

class BpeTokenizer::BpeEncoder : public Tokenizer::Encoder {
 public:
  explicit BpeEncoder(const BpeTokenizer& owner)
      : owner_(owner), step_texts_(owner.spec_.pre_tokenizer.size()), step_ranges_(step_texts_.size()) {}

  void encode(std::string_view text, bool add_special_tokens, std::vector<std::int32_t>& out,
              std::vector<EncodedPart>* parts) override {
    if (const std::size_t invalid = find_invalid_utf8(text); invalid != kValidUtf8)
      throw Error(ExitCode::dataset, "the text is not valid UTF-8", fmt::format("byte {}", invalid),
                  "convert it to UTF-8");
    out_ = &out;
    scratch_.begin_text(text.size());
    const SpecialFrame& frame = owner_.frame_;
    if (add_special_tokens) out.insert(out.end(), frame.before.begin(), frame.before.end());
    owner_.matchers_[0]->split(text, scratch_, [&](std::size_t begin, std::size_t end, const AddedToken* token) {
      if (parts != nullptr) parts->push_back({begin, end, out.size(), token != nullptr});
      if (token != nullptr) {
        out.push_back(token->id);
      } else {
        encode_part(text.substr(begin, end - begin), begin == 0);
      }
    });
    if (add_special_tokens) out.insert(out.end(), frame.behind.begin(), frame.behind.end());
  }

 private:
  void encode_part(std::string_view text, bool at_start) {
    bool lost_front = false;
    const std::string_view normalized =
        normalize_text(owner_.spec_.normalizer, text, normalized_, scratch_, &lost_front);
    at_start = at_start && !lost_front;
    if (owner_.matchers_[1]->empty()) {
      pre_tokenize(0, normalized, at_start);
      return;
    }
    owner_.matchers_[1]->split(normalized, scratch_, [&](std::size_t begin, std::size_t end, const AddedToken* token) {
      if (token != nullptr) {
        out_->push_back(token->id);
      } else {
        pre_tokenize(0, normalized.substr(begin, end - begin), at_start && begin == 0);
      }
    });
  }

  /// `at_start`: the whole text begins here.
  void pre_tokenize(std::size_t index, std::string_view text, bool at_start) {
    if (text.empty()) return;
    if (index == owner_.spec_.pre_tokenizer.size()) {
      encode_words(text);
      return;
    }
    const PreTokenizerStep& step = owner_.spec_.pre_tokenizer[index];
    if (step.kind == StepKind::metaspace) text = with_metaspaces(step, text, at_start, step_texts_[index]);
    if (step.add_prefix_space && text[0] != ' ') {
      step_texts_[index].assign(" ").append(text);
      text = step_texts_[index];
    }
    if (step.pattern.empty()) {
      pre_tokenize(index + 1, text, at_start);
    } else {
      split(index, text, at_start);
    }
  }

  static std::string_view with_metaspaces(const PreTokenizerStep& step, std::string_view text, bool at_start,
                                          std::string& out) {
    out.clear();
    const bool may_prepend =
        step.prepend_scheme == PrependScheme::always || (step.prepend_scheme == PrependScheme::first && at_start);
    if (may_prepend && text[0] != ' ' && !text.starts_with(step.replacement)) out += step.replacement;
    for (std::size_t done = 0; done < text.size();) {
      const std::size_t space = std::min(text.find(' ', done), text.size());
      out.append(text, done, space - done);
      if (space < text.size()) out += step.replacement;
      done = space + 1;
    }
    return out;
  }

  /// Splits a text; what a match is part of goes on to the next step.
  void split(std::size_t index, std::string_view text, bool at_start) {
    const PreTokenizerStep& step = owner_.spec_.pre_tokenizer[index];
    const auto go_on = [&](std::size_t begin, std::size_t end) {
      if (begin < end) pre_tokenize(index + 1, text.substr(begin, end - begin), at_start && begin == 0);
    };
    if (step.behavior == SplitBehavior::isolated) {
      for_each_range(step, text, [&](std::size_t begin, std::size_t end, bool) { go_on(begin, end); });
    } else if (step.behavior == SplitBehavior::removed) {
      for_each_range(step, text, [&](std::size_t begin, std::size_t end, bool is_match) {
        if (!is_match) go_on(begin, end);
      });
    } else {
      std::vector<TextRange>& merged = step_ranges_[index];
      merge_ranges(step, text, merged);
      for (std::size_t i = 0; i < merged.size(); ++i) go_on(merged[i].begin, merged[i].end);
    }
  }

  template <class Each>
  void for_each_range(const PreTokenizerStep& step, std::string_view text, const Each& each) {
    std::size_t done = 0;
    step.pattern.front().find_all(text, scratch_, [&](TextRange match) {
      if (done != match.begin) each(done, match.begin, step.invert);
      each(match.begin, match.end, !step.invert);
      done = match.end;
    });
    if (done != text.size()) each(done, text.size(), step.invert);
  }

  void merge_ranges(const PreTokenizerStep& step, std::string_view text, std::vector<TextRange>& merged) {
    std::vector<bool> matches;
    merged.clear();
    for_each_range(step, text, [&](std::size_t begin, std::size_t end, bool is_match) {
      merged.push_back({begin, end});
      matches.push_back(is_match);
    });
    const bool is_backward = step.behavior == SplitBehavior::merged_with_next;
    const std::size_t count = merged.size();
    std::vector<TextRange> joined;
    bool previous = false;  // the range before, in the direction of merging, is a match
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = is_backward ? count - 1 - i : i;
      const bool joins =
          step.behavior == SplitBehavior::contiguous ? matches[at] == previous : matches[at] && !previous;
      previous = matches[at];
      if (!joins || joined.empty()) {
        joined.push_back(merged[at]);
      } else if (is_backward) {
        joined.back().begin = merged[at].begin;
      } else {
        joined.back().end = merged[at].end;
      }
    }
    if (is_backward) std::reverse(joined.begin(), joined.end());
    merged = std::move(joined);
  }

  void encode_words(std::string_view text) {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = owner_.bpe_.piece_end(text, begin);
      encode_word(text.substr(begin, end - begin));
      begin = end;
    }
  }

  void encode_word(std::string_view word) {
    if (word.size() > WordCache::kLongestWord) {
      owner_.bpe_.encode_word(word, *out_);
      return;
    }
    const std::uint64_t hash = XXH3_64bits(word.data(), word.size());
    if (const WordCache::Ids known = cache_.find(word, hash); known.data != nullptr) {
      out_->insert(out_->end(), known.data, known.data + known.size);
      return;
    }
    const std::size_t before = out_->size();
    owner_.bpe_.encode_word(word, *out_);
    if (out_->size() - before <= WordCache::kMostIds) cache_.insert(word, hash, std::span(*out_).subspan(before));
  }

  const BpeTokenizer& owner_;
  Regex::Scratch scratch_;
  WordCache cache_;
  std::string normalized_;
  std::vector<std::string> step_texts_;  // text of each pre-tokenizer
  std::vector<std::vector<TextRange>> step_ranges_;
  std::vector<std::int32_t>* out_ = nullptr;
};

BpeTokenizer::BpeTokenizer(const std::string& path, const TokenizerConfig& config)
    : path_(path),
      spec_(with_config(read_tokenizer_json(path), config)),
      byte_level_(check_byte_level(spec_, path)),
      bpe_(spec_.model, byte_level_, path) {
  for (const auto& [token, id] : bpe_.vocabulary()) set_token(id, token, false);
  add_tokens();
  frame_ = spec_.frame;
  for (const bool is_normalized : {false, true})
    matchers_.push_back(std::make_unique<AddedTokenMatcher>(make_matcher(is_normalized, config.split_special_tokens)));
}

void BpeTokenizer::set_token(std::int32_t id, const std::string& text, bool is_special) {
  if (text.size() > ReaderLimits::kTokenBytes)
    throw Error(ExitCode::model,
                fmt::format("token {} has {} bytes, more than {}", id, text.size(), ReaderLimits::kTokenBytes), path_,
                "use a tokenizer without it");
  if (tokens_.size() <= static_cast<std::size_t>(id)) tokens_.resize(static_cast<std::size_t>(id) + 1);
  tokens_[static_cast<std::size_t>(id)] = {text, true, is_special};
}

/// The id of an added token is that of the vocabulary, or else the next after the vocabulary: what the file says must
/// be the same.
void BpeTokenizer::add_tokens() {
  std::erase_if(spec_.added_tokens, [](const AddedToken& token) { return token.content.empty(); });
  auto next = static_cast<std::int32_t>(bpe_.vocabulary().size());
  for (const AddedToken& token : spec_.added_tokens) {
    const std::int32_t id = token_to_id(token.content).value_or(next);
    if (id != token.id)
      throw Error(ExitCode::model,
                  fmt::format("the added token '{}' has id {}, where {} is due", token.content, token.id, id), path_,
                  "write the file again, with the vocabulary's ids and those behind it");
    next = std::max(next, id + 1);
    if (text_of(token).empty())
      throw Error(ExitCode::model,
                  fmt::format("nothing is left of the added token '{}' when it is normalized", token.content), path_,
                  "use a tokenizer without it");
    set_token(id, text_of(token), token.special && text_of(token) == token.content);  // by its text, as others have it
    added_ids_[token.content] = id;
  }
}

/// Text of a token as it is found in a text, and decoded.
std::string BpeTokenizer::text_of(const AddedToken& token) const {
  if (!token.normalized) return token.content;
  Regex::Scratch scratch;
  std::string buffer;
  return std::string(normalize_text(spec_.normalizer, token.content, buffer, scratch));
}

AddedTokenMatcher BpeTokenizer::make_matcher(bool normalized, bool splits_special) const {
  std::vector<AddedTokenMatcher::Pattern> patterns;
  std::unordered_map<std::string, std::string> contents;
  for (const AddedToken& token : spec_.added_tokens) {
    if (token.normalized != normalized) continue;
    patterns.push_back({text_of(token), token});
    if (const auto& first = contents.try_emplace(patterns.back().text, token.content).first->second;
        first != token.content)
      throw Error(ExitCode::model,
                  fmt::format("the added tokens '{}' and '{}' are the same when normalized", first, token.content),
                  path_, "use a tokenizer without one of them");
  }
  return AddedTokenMatcher(patterns, splits_special);
}

std::unique_ptr<Tokenizer::Encoder> BpeTokenizer::make_encoder() const { return std::make_unique<BpeEncoder>(*this); }

std::optional<std::int32_t> BpeTokenizer::token_to_id(std::string_view token) const {
  if (const auto added = added_ids_.find(token); added != added_ids_.end()) return added->second;
  const auto found = bpe_.vocabulary().find(token);
  return found == bpe_.vocabulary().end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::string> BpeTokenizer::id_to_token(std::int32_t id) const {
  if (id < 0 || id >= vocab_size() || !tokens_[static_cast<std::size_t>(id)].exists) return std::nullopt;
  return tokens_[static_cast<std::size_t>(id)].text;
}

bool BpeTokenizer::is_special(std::int32_t id) const {
  return id >= 0 && id < vocab_size() && tokens_[static_cast<std::size_t>(id)].is_special;
}

std::string BpeTokenizer::surface(std::int32_t id) const {
  const std::string token = id_to_token(id).value_or("");
  if (added_ids_.contains(token)) return token;
  return byte_level_ ? bytes_of(token) : plain_piece(token);
}

std::string BpeTokenizer::decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  std::vector<std::string> texts;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) continue;
    const Token& token = tokens_[static_cast<std::size_t>(id)];
    if (token.exists && !(skip_special_tokens && token.is_special)) texts.push_back(token.text);
  }
  return decode_tokens(spec_, std::move(texts), path_);
}

}  // namespace zs
