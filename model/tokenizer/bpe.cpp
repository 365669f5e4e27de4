#include "model/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <optional>
#include <queue>

#include "model/tokenizer/utf8.h"
#include "runtime/base/check.h"

namespace zs {
namespace {

constexpr std::size_t kCharacters = 65536;
constexpr std::size_t kShortWord = 48;  // symbols; up to here a scan is quicker than a heap

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

std::uint64_t hash_pair(std::uint64_t pair) {
  pair *= 0x9e3779b97f4a7c15;
  return pair ^ pair >> 32;
}

/// A token in GPT-2's alphabet as the bytes that it stands for; none if it has another character.
std::optional<std::string> raw_bytes(std::string_view token) {
  std::string bytes;
  for (std::size_t at = 0; at < token.size(); at += utf8_length(token[at])) {
    const int byte = character_byte(utf8_at(token, at));
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

std::string character_of_byte(unsigned char byte) {
  std::string text;
  append_utf8(byte_character(byte), text);
  return text;
}

std::string_view last_character(std::string_view text) {
  std::size_t begin = text.size() - 1;
  while (begin > 0 && is_utf8_continuation(text[begin])) --begin;
  return text.substr(begin);
}

}  // namespace

Bpe::Bpe(const BpeSpec& spec, bool byte_level, const std::string& file)
    : file_(file),
      byte_level_(byte_level),
      fuse_unk_(spec.fuse_unk),
      has_affixes_(!spec.continuing_prefix.empty() || !spec.end_of_word_suffix.empty()),
      ignore_merges_(spec.ignore_merges),
      has_unk_(spec.has_unk),
      unk_token_(spec.unk_token),
      prefix_(spec.continuing_prefix),
      suffix_(spec.end_of_word_suffix) {
  vocabulary_.reserve(spec.vocab.size());
  for (const auto& [token, id] : spec.vocab) vocabulary_[token] = id;
  if (const auto unk = vocabulary_.find(unk_token_); has_unk_ && unk != vocabulary_.end()) unk_id_ = unk->second;
  fallback_ids_.fill(-1);
  has_fallback_ = spec.byte_fallback;
  has_all_fallback_ = has_fallback_;
  for (int byte = 0; byte < 256 && has_fallback_; ++byte) {
    const auto found = vocabulary_.find(fmt::format("<0x{:02X}>", byte));
    if (found != vocabulary_.end()) fallback_ids_[static_cast<std::size_t>(byte)] = found->second;
    has_all_fallback_ = has_all_fallback_ && found != vocabulary_.end();
  }
  index_symbols();
  add_merges(spec);
  if (!byte_level_ && !has_affixes_ && !ignore_merges_) find_cuts(spec);
}

void Bpe::index_symbols() {
  character_ids_.assign(kCharacters, -1);
  for (const auto& [token, id] : vocabulary_) {
    if (token.empty() || utf8_length(token[0]) != token.size()) continue;
    if (const char32_t character = utf8_at(token, 0); character < kCharacters) character_ids_[character] = id;
  }
  for (int byte = 0; byte < 256; ++byte)
    byte_ids_[static_cast<std::size_t>(byte)] = character_ids_[byte_character(static_cast<unsigned char>(byte))];
  if (!ignore_merges_) return;
  for (const auto& [token, id] : vocabulary_) {
    if (!byte_level_) {
      words_[token] = id;
    } else if (const auto raw = raw_bytes(token)) {
      words_[*raw] = id;
    }
  }
}

void Bpe::add_merges(const BpeSpec& spec) {
  merges_.resize(std::bit_ceil(2 * spec.merges.size() + 2));
  merge_mask_ = merges_.size() - 1;
  const auto id_of = [&](const std::string& token, std::size_t i) {
    const auto found = vocabulary_.find(token);
    if (found == vocabulary_.end())
      throw Error(ExitCode::model,
                  fmt::format("model.merges[{}] needs the token '{}', which is not in the vocabulary", i, token), file_,
                  "fetch or write the file again");
    return found->second;
  };
  for (std::size_t i = 0; i < spec.merges.size(); ++i) {
    const auto& [left, right] = spec.merges[i];
    const std::int32_t left_id = id_of(left, i), right_id = id_of(right, i);
    if (!right.starts_with(prefix_))
      throw Error(ExitCode::model,
                  fmt::format("model.merges[{}] has '{}', which lacks the continuing_subword_prefix", i, right), file_);
    insert_merge(
        {pair_of(left_id, right_id), static_cast<std::int32_t>(i), id_of(left + right.substr(prefix_.size()), i)});
  }
}

void Bpe::insert_merge(const Merge& merge) {
  std::uint64_t slot = hash_pair(merge.pair) & merge_mask_;
  while (merges_[slot].pair != kNoPair && merges_[slot].pair != merge.pair) slot = (slot + 1) & merge_mask_;
  merges_[slot] = merge;
}

const Bpe::Merge* Bpe::find_merge(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  std::uint64_t slot = hash_pair(pair) & merge_mask_;
  while (merges_[slot].pair != pair) {
    if (merges_[slot].pair == kNoPair) return nullptr;
    slot = (slot + 1) & merge_mask_;
  }
  return &merges_[slot];
}

/// A merge joins two tokens where the last character of one meets the first of the other. Between characters that no
/// merge joins so, a text can be cut. That holds as long as all symbols that merge are characters, and not <0x00> or
/// the unknown token.
void Bpe::find_cuts(const BpeSpec& spec) {
  std::vector<std::int32_t> singles;
  std::int32_t largest = 0;
  for (const auto& [token, id] : spec.vocab) {
    largest = std::max(largest, id);
    if (!token.empty() && utf8_length(token[0]) == token.size()) singles.push_back(id);
  }
  if (singles.size() > kMostClasses) return;
  classes_.assign(static_cast<std::size_t>(largest) + 1, kNoClass);
  for (std::size_t i = 0; i < singles.size(); ++i)
    classes_[static_cast<std::size_t>(singles[i])] = static_cast<std::uint16_t>(i);
  class_words_ = (singles.size() + 63) / 64;
  std::vector<std::uint64_t> joined(singles.size() * class_words_);
  for (const auto& [left, right] : spec.merges) {
    for (const std::string& token : {left, right}) {
      const std::int32_t id = vocabulary_.find(token)->second;
      if ((has_unk_ && id == unk_id_) || token.empty() ||
          std::find(fallback_ids_.begin(), fallback_ids_.end(), id) != fallback_ids_.end())
        return;
    }
    const std::uint16_t end = cut_class(last_character(left), 0), begin = cut_class(right, 0);
    if (end == kNoClass || begin == kNoClass) continue;  // no such symbol: the merge never comes about
    joined[end * class_words_ + begin / 64] |= std::uint64_t{1} << begin % 64;
  }
  joined_ = std::move(joined);
}

std::int32_t Bpe::character_id(std::string_view text, std::size_t at) const {
  const char32_t character = utf8_at(text, at);
  if (character < kCharacters) return character_ids_[character];
  const auto found = vocabulary_.find(text.substr(at, utf8_length(text[at])));
  return found == vocabulary_.end() ? -1 : found->second;
}

std::uint16_t Bpe::cut_class(std::string_view text, std::size_t at) const {
  const std::int32_t id = character_id(text, at);
  return id < 0 ? kNoClass : classes_[static_cast<std::size_t>(id)];
}

std::size_t Bpe::piece_end(std::string_view text, std::size_t from) const {
  if (joined_.empty()) return text.size();
  // Unknown characters can be fused, so there is no cut beside them, unless their bytes stand for them.
  std::uint16_t left = cut_class(text, from);
  for (std::size_t at = from + utf8_length(text[from]); at < text.size(); at += utf8_length(text[at])) {
    const std::uint16_t right = cut_class(text, at);
    const bool has_unknown = left == kNoClass || right == kNoClass;
    if (has_unknown ? has_all_fallback_ : (joined_[left * class_words_ + right / 64] >> right % 64 & 1) == 0) return at;
    left = right;
  }
  return text.size();
}

bool Bpe::append_byte_fallback(std::string_view symbol, std::vector<std::int32_t>& out) const {
  const auto id_of = [&](char c) { return fallback_ids_[static_cast<unsigned char>(c)]; };
  if (!has_fallback_ || std::any_of(symbol.begin(), symbol.end(), [&](char c) { return id_of(c) < 0; })) return false;
  for (const char c : symbol) out.push_back(id_of(c));
  return true;
}

void Bpe::append_symbols(std::string_view word, std::vector<std::int32_t>& out) const {
  // An unknown token is yet to come: after the bytes that stand between, as others have it.
  bool is_unknown = false;
  std::string symbol;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t length = byte_level_ ? 1 : utf8_length(word[at]);
    std::int32_t id = -1;
    if (!has_affixes_) id = byte_level_ ? byte_ids_[static_cast<unsigned char>(word[at])] : character_id(word, at);
    if (id < 0) {
      symbol = (at > 0 ? prefix_ : "") +
               (byte_level_ ? character_of_byte(static_cast<unsigned char>(word[at]))
                            : std::string(word.substr(at, length))) +
               (at + length == word.size() ? suffix_ : "");
      if (const auto found = vocabulary_.find(symbol); found != vocabulary_.end()) id = found->second;
    }
    at += length;
    if (id >= 0) {
      if (is_unknown) out.push_back(unk_id_);
      is_unknown = false;
      out.push_back(id);
    } else if (!append_byte_fallback(symbol, out) && has_unk_) {
      if (unk_id_ < 0)
        throw Error(ExitCode::model,
                    fmt::format("the text has a character without a token, and unk_token '{}' is not in the vocabulary",
                                unk_token_),
                    file_);
      if (is_unknown && !fuse_unk_) out.push_back(unk_id_);
      is_unknown = true;
    }
  }
  if (is_unknown) out.push_back(unk_id_);
}

void Bpe::encode_word(std::string_view word, std::vector<std::int32_t>& out) const {
  if (ignore_merges_) {
    if (const auto found = words_.find(word); found != words_.end()) {
      out.push_back(found->second);
      return;
    }
  }
  const std::size_t begin = out.size();
  append_symbols(word, out);
  if (out.size() - begin <= kShortWord) {
    merge_short(out, begin);
  } else {
    merge_long(out, begin);
  }
}

/// Looks through all neighbours for each merge.
void Bpe::merge_short(std::vector<std::int32_t>& symbols, std::size_t begin) const {
  std::size_t count = symbols.size() - begin;
  if (count < 2) return;
  std::int32_t* const ids = symbols.data() + begin;
  std::array<const Merge*, kShortWord> found{};  // merge of symbol i and the next
  for (std::size_t i = 0; i + 1 < count; ++i) found[i] = find_merge(ids[i], ids[i + 1]);
  for (;;) {
    std::size_t best = count;
    for (std::size_t i = 0; i + 1 < count; ++i)
      if (found[i] != nullptr && (best == count || found[i]->rank < found[best]->rank)) best = i;
    if (best == count) break;
    ids[best] = found[best]->id;
    std::copy(ids + best + 2, ids + count, ids + best + 1);
    std::copy(found.begin() + static_cast<std::ptrdiff_t>(best) + 1,
              found.begin() + static_cast<std::ptrdiff_t>(count) - 1,
              found.begin() + static_cast<std::ptrdiff_t>(best));
    --count;
    if (best > 0) found[best - 1] = find_merge(ids[best - 1], ids[best]);
    if (best + 1 < count) found[best] = find_merge(ids[best], ids[best + 1]);
  }
  symbols.resize(begin + count);
}

struct Bpe::Queued {
  std::int32_t rank;
  std::uint32_t at;
  std::int32_t left, right;  // symbols as they were then
  bool operator<(const Queued& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
};

/// A linked list of symbols, and a heap of the merges that may be done.
void Bpe::merge_long(std::vector<std::int32_t>& symbols, std::size_t begin) const {
  const std::size_t count = symbols.size() - begin;
  if (count >= UINT32_MAX)
    throw Error(ExitCode::dataset, "a word has more than 4294967294 characters", "", "put spaces into the text");
  std::int32_t* const ids = symbols.data() + begin;
  constexpr std::uint32_t kNone = UINT32_MAX;
  std::vector<std::uint32_t> previous(count), next(count);
  std::vector<Queued> first;
  const auto candidate = [&](std::uint32_t left, std::uint32_t right) -> std::optional<Queued> {
    const Merge* const merge = find_merge(ids[left], ids[right]);
    if (merge == nullptr) return std::nullopt;
    return Queued{merge->rank, left, ids[left], ids[right]};
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    previous[i] = i == 0 ? kNone : i - 1;
    next[i] = i + 1 == count ? kNone : i + 1;
    if (i + 1 < count)
      if (const auto queued = candidate(i, i + 1)) first.push_back(*queued);
  }
  std::priority_queue<Queued> queue(std::less<Queued>(), std::move(first));
  const auto push = [&](std::uint32_t left, std::uint32_t right) {
    if (const auto queued = candidate(left, right)) queue.push(*queued);
  };
  while (!queue.empty()) {
    const Queued top = queue.top();
    queue.pop();
    const std::uint32_t right = ids[top.at] < 0 ? kNone : next[top.at];
    if (right == kNone || ids[top.at] != top.left || ids[right] != top.right) continue;  // one of them has merged since
    ids[top.at] = find_merge(top.left, top.right)->id;
    ids[right] = -1;
    next[top.at] = next[right];
    if (next[right] != kNone) previous[next[right]] = top.at;
    if (previous[top.at] != kNone) push(previous[top.at], top.at);
    if (next[top.at] != kNone) push(top.at, next[top.at]);
  }
  symbols.erase(std::remove(symbols.begin() + static_cast<std::ptrdiff_t>(begin), symbols.end(), -1), symbols.end());
}

}  // namespace zs
